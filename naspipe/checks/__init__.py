"""Inspect and check user objects: layer sizes and shapes, losses, data and optimizers."""
