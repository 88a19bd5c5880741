"""Checkpoints on a stage: capture during training, write in the background, restore."""
