"""Benchmarks with one harness: ``python scripts/bench NAME --help``."""
