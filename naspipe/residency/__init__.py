"""Residency (the paper's context manager): which layers are on the device. Decisions only."""
