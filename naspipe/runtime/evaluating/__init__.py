"""Judges subnets: one stage of a pipeline, with a run's weights; and proxies, with first ones."""
