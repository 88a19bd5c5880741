"""Labels that the stage of the loss computes itself: the definition's plain loop."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import torch

from naspipe.runtime.jobs.ports import SourceSeat
from naspipe.runtime.jobs.workload import Workload
from naspipe.runtime.labels.label_network import LabelNetwork, check_draws


class InlineLabels:
    """A :class:`naspipe.runtime.jobs.ports.FieldSource`; one label at a time, between tasks.

    Args:
        teacher: what computes them.
        device: of the stage.
        seat: see :class:`naspipe.runtime.jobs.ports.SourceSeat`.
    """

    def __init__(self, teacher: Workload, device: str, seat: SourceSeat) -> None:
        self._teacher = teacher
        self._device = device
        self._network: LabelNetwork | None = None
        """Made with the first request: only the stage of the loss has any."""
        self._wake = seat.wake
        self._asked: deque[int] = deque()

    def request(self, batch: int) -> None:
        """Compute the label of a batch when nothing else is done."""
        self._asked.append(batch)
        self._wake()

    def take(self) -> Sequence[tuple[int, torch.Tensor]]:
        """The next label."""
        if not self._asked:
            return ()
        if self._network is None:
            self._network = LabelNetwork.of(self._teacher, self._device)
            if self._teacher.recipe.steps.shares_batch:  # a label belongs to several passes
                check_draws(self._network, self._asked[0], self._network.fields(self._asked[0]))
        batch = self._asked.popleft()
        if self._asked:
            self._wake()
        return [(batch, self._network.label(batch))]

    def close(self) -> None:
        """Nothing more is wanted."""
        self._asked.clear()
        self._network = None
