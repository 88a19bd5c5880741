"""Layers on a stage: their tensors, their optimizers, and where they are kept."""
