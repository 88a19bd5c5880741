"""Image classification spaces: a chain of 32 choice blocks."""
