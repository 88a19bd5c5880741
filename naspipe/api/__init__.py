"""What users call from Python: train, distil, search, retrain, plan, simulate and verify."""
