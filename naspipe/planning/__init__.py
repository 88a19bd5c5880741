"""Costs of layers, and the partitions that balance them."""
