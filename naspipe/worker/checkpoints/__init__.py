"""Checkpoints on a stage: capture while training, write in the background, restore."""
