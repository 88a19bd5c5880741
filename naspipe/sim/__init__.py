"""The same controllers on a virtual clock."""
