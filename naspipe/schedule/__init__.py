"""Causal order: which version each access asks for, and when it exists."""
