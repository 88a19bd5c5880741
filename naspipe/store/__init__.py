"""The run directory: logs, losses, checkpoints, comparison and metrics. Pure."""
