"""One stage's decisions: the controller, and the admission of subnets."""
