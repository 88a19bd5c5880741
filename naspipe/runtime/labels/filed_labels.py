"""Labels that were written before: read when they are asked for."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import torch

from naspipe.runtime.jobs.ports import SourceSeat
from naspipe.runtime.labels.label_file import LabelFile


class FiledLabels:
    """A :class:`naspipe.runtime.jobs.ports.FieldSource`.

    Args:
        file: holds every label of the run.
        seat: see :class:`naspipe.runtime.jobs.ports.SourceSeat`.
    """

    def __init__(self, file: LabelFile, seat: SourceSeat) -> None:
        self._file = file
        self._wake = seat.wake
        self._asked: deque[int] = deque()

    def request(self, batch: int) -> None:
        """Read the label of a batch."""
        self._asked.append(batch)
        self._wake()

    def take(self) -> Sequence[tuple[int, torch.Tensor]]:
        """Every label that was asked for."""
        asked, self._asked = self._asked, deque()
        return [(batch, self._file.label(batch)) for batch in asked]

    def close(self) -> None:
        """Nothing more is wanted."""
        self._asked.clear()
