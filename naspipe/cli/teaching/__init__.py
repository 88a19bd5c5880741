"""Teachers as the command line names them."""
