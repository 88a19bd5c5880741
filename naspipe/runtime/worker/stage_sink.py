"""What a stage's driver hands on: records, losses, and what the launcher asks for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from naspipe.core.access import Access
from naspipe.core.events import Event
from naspipe.core.ids import SequenceId, StreamId


class StageSink(Protocol):
    """Where a stage's results go: files and the launcher."""

    def access(self, access: Access) -> None:
        """One record of the access log."""
        ...

    def loss(self, stream: StreamId, sequence_id: SequenceId, loss: torch.Tensor) -> None:
        """A pass's loss, in the order in which passes reach it here."""
        ...

    def event(self, event: Event) -> None:
        """An event that the controller is about to handle."""
        ...

    def held(self, admitted: Sequence[int]) -> None:
        """The stage admits nothing more of its own accord: of each stream, how many it has."""
        ...
