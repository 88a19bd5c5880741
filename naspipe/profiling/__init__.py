"""Measured times and counted sizes of layers and subnets."""
