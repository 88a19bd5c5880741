"""Layers on a stage: their tensors, optimizers and storage."""
