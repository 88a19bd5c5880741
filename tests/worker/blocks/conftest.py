"""Blocks are computed here as on a stage: by one thread."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def as_on_a_stage(one_thread):
    """By one thread."""
