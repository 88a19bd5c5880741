"""Layers as bytes: captured beside the training, written, and read back by layer."""
