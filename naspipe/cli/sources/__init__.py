"""Where a command's space and data come from: a run that is there, data sets by name."""
