"""The computation of blocks: forward, backward, objectives and updates."""
