"""Data only: what a pipeline is to do, as every process of it needs to know."""
