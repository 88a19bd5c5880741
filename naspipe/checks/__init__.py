"""What a user object is, and whether it may be used: sizes, shapes, losses, data, optimizers."""
