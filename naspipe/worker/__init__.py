"""The code of a stage process: its loop, blocks, layers and checkpoints."""
