"""Convert what users name or pass into the inputs of a run."""
