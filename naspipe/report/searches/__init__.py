"""Searches in the report: their tables, and which choices win."""
