"""What a run leaves behind: logs, losses, checkpoints, comparison and numbers. Never torch."""
