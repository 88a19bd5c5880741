"""What the reader's thread has the stage's thread do: batches are made there only.

Data may draw from torch's generator, or keep a place in a file. The stage seeds each block behind
its data, so on its own thread that is no matter; beside it, it would be.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence

import torch

Fields = Sequence[torch.Tensor]


class StageErrands:
    """Batches that are wanted, and what is done with them.

    Args:
        make: what a teacher takes of a batch; called on the stage's thread.
        wake_stage: when something is wanted.
        wake_reader: when it is there.
    """

    def __init__(
        self,
        make: Callable[[int], Fields],
        wake_stage: Callable[[], None],
        wake_reader: Callable[[], None],
    ) -> None:
        self._make, self._wake_stage, self._wake_reader = make, wake_stage, wake_reader
        self._waiting: dict[int, list[Callable[[Fields], None]]] = {}
        self._wanted: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._made: queue.SimpleQueue[tuple[int, Fields]] = queue.SimpleQueue()

    def ask(self, number: int, then: Callable[[Fields], None]) -> None:
        """On the reader's thread: have a batch made, and then go on with it."""
        if number not in self._waiting:
            self._wanted.put(number)
            self._wake_stage()
        self._waiting.setdefault(number, []).append(then)

    def settle(self) -> None:
        """On the reader's thread: go on with what has been made."""
        while not self._made.empty():
            number, fields = self._made.get()
            for then in self._waiting.pop(number):
                then(fields)

    def run(self) -> None:
        """On the stage's thread: make what is wanted."""
        while not self._wanted.empty():
            number = self._wanted.get()
            self._made.put((number, self._make(number)))
            self._wake_reader()
