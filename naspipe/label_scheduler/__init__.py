"""The label scheduler: which label is requested from which remote teacher, and when again."""
