"""Checkpoints on disk: shards, their manifest, and which are kept."""
