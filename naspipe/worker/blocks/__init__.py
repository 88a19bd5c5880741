"""Computation of blocks: forward, backward, objectives and updates."""
