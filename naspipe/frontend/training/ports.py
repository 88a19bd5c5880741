"""Files that the numbers of a run go to while it goes on.

Implementations: :class:`naspipe.trace.results.metrics_file.MetricsFile`,
:class:`naspipe.frontend.training.tensorboard_file.TensorBoardFile`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

Values = Mapping[str, float | str | None]

METRICS = "metrics/"
"""What the names of a user's own numbers begin with."""


class ScalarFile(Protocol):
    """Where the numbers of steps go."""

    def write(self, step: int, values: Values) -> None:
        """Take one step's numbers."""
        ...

    def close(self) -> None:
        """No more will come."""
        ...
