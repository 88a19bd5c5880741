"""Costs, partitions, dispatch orders, the causal bound, and the simulator. Pure."""
