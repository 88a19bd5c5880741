"""The Python interface: train, distill, search, retrain, plan, simulate and verify."""
