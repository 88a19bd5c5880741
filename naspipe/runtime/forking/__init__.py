"""Processes forked from this one, and what keeps this one fit for forking them. Knows no layer."""
