"""Forward-only runs: scores of subnets with inherited weights, calibration, proxies."""
