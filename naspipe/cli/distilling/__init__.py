"""The parts of ``naspipe distill``."""
