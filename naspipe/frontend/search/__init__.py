"""From a run to its best subnets."""
