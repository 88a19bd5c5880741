"""One stage's part of a checkpoint, which is written while it is still captured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from naspipe.config.errors import InvariantError
from naspipe.config.ids import StageId
from naspipe.runtime.checkpoints.capture_memory import Block, Captured, CaptureMemory
from naspipe.runtime.checkpoints.restored import LayerSnapshot
from naspipe.trace.snapshots.shard_headers import Header
from naspipe.trace.snapshots.shard_writer import ShardWriter

_LEAST_ROOM = 1 << 16
_BYTES_PER_TENSOR = 112
"""Of a header, about."""


class Part:
    """Layers are added by the thread that computes; what is full is written by another one.

    Args:
        directory: of the checkpoint.
        stage: whose part.
        memory: where its blocks are from.
        num_parameters: how many the layers to come may have; a guess, asked for once.
        hand_on: told of each block that is to be written by :meth:`write` and then given back;
            None to do that at once.
    """

    def __init__(
        self,
        directory: Path,
        stage: StageId,
        memory: CaptureMemory,
        num_parameters: Callable[[], int],
        hand_on: Callable[[Block], None] | None = None,
    ) -> None:
        self.captured = Captured(memory, self._full)
        self._memory = memory
        self._hand_on = hand_on or self._write_at_once
        self._num_parameters = num_parameters
        self._shard = ShardWriter(directory / f"stage-{stage}.safetensors")
        self._header = Header()
        self._said: dict[str, Any] = {"versions": {}, "history": {}, "scalars": {}, "strides": {}}
        self._room = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.end()

    def add(self, key: str, snapshot: LayerSnapshot) -> None:
        """A layer whose tensors are in :attr:`captured`, behind those that were added before.

        Raises:
            InvariantError: when it is there already.
        """
        versions, tensors, scalars, strides = snapshot
        if key in self._said["versions"]:
            raise InvariantError(f"layer {key} was captured twice for one checkpoint")
        for listing, crc in tensors:
            self._header.add(f"{key}/", listing, crc)
        self._said["versions"][key] = int(versions[-1])
        if len(versions) > 1:
            self._said["history"][key] = list(map(int, versions))
        for kind, values in (("scalars", scalars), ("strides", strides)):
            self._said[kind] |= {f"{key}/{name}": value for name, value in values.items()}

    def close(self) -> None:
        """No layer comes any more: hand on what is full."""
        self.captured.end()

    def write(self, block: Block) -> None:
        """Write what is full.

        Raises:
            OSError: when it cannot be written.
        """
        self._shard.append(block.view, self._room)

    def finish(self) -> dict[str, Any]:
        """Write the rest; returns the part of the checkpoint's manifest.

        Raises:
            OSError: when it cannot be written.
        """
        captured = self.captured
        shard = self._shard.finish(self._header, captured.streamed_items, captured.rest)
        return {"shard": shard, **self._said}

    def end(self) -> None:
        """Give the memory back, and leave no file that is not whole."""
        self._shard.abort()
        self.captured.give_back()

    def _full(self, block: Block) -> None:
        if not self._room:
            self._room = self._guess()
        self._hand_on(block)

    def _guess(self) -> int:
        """Room for the header, were all layers as those that are captured."""
        names = self._header.names
        num_parameters = sum(name.startswith("param/") for name in names)
        num_tensors = self._num_parameters() * len(names) // max(num_parameters, 1)
        return _LEAST_ROOM + _BYTES_PER_TENSOR * (len(names) + num_tensors)

    def _write_at_once(self, block: Block) -> None:
        self.write(block)
        self._memory.give_back(block)
