"""Layers that draw paths from architecture parameters."""
