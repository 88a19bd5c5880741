"""The processes of a run: start, supervision, restart, stop, and validation during training."""
