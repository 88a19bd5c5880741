"""From a definition to a finished run directory, through every generation of the run."""
