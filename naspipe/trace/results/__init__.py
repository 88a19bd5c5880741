"""The run directory and its line files: losses, metrics, validations."""
