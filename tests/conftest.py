"""Shared settings of the suite."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("naspipe", deadline=None, print_blob=True)
settings.load_profile("naspipe")
