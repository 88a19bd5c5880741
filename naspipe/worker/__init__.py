"""What runs inside a stage process: the loop, the blocks, the layers and the checkpoints."""
