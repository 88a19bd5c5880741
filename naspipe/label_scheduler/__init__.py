"""Which label is asked of which remote teacher, and when again."""
