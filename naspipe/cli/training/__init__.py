"""The parts of ``naspipe train``."""
