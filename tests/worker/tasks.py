"""Tasks as the tests of the runtime name them."""

from __future__ import annotations

from naspipe.config.ids import FIRST_STREAM
from naspipe.engine.events import Task


def task(sequence_id, kind, stage):
    """A task of the first stream."""
    return Task(FIRST_STREAM, sequence_id, kind, stage)
