"""Labels from processes that come and go."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from naspipe.runtime.jobs.ports import SourceSeat
from naspipe.runtime.labels.label_reader import LabelReader


class ServedLabels:
    """A :class:`naspipe.runtime.jobs.ports.FieldSource`.

    Args:
        begin: makes the reader, with the first request: only the stage of the loss has any.
        seat: see there.
    """

    def __init__(self, begin: Callable[[SourceSeat], LabelReader], seat: SourceSeat) -> None:
        self._begin, self._seat = begin, seat
        self._reader: LabelReader | None = None
        self._asked: set[int] = set()
        self._held: dict[int, torch.Tensor] = {}
        """Labels that came before they were asked for."""

    def request(self, batch: int) -> None:
        """Have a label by and by."""
        if self._reader is None:
            self._reader = self._begin(self._seat)
        self._asked.add(batch)
        self._reader.want(batch)
        if batch in self._held:
            self._seat.wake()

    def take(self) -> Sequence[tuple[int, torch.Tensor]]:
        """Those that were asked for and have come."""
        if self._reader is None:
            return ()
        self._held.update(self._reader.take())
        found = sorted(self._asked & self._held.keys())
        for batch in found:
            self._asked.discard(batch)
            self._reader.used(batch)
        return [(batch, self._held.pop(batch)) for batch in found]

    def close(self) -> None:
        """End the reader."""
        if self._reader is not None:
            self._reader.close()
