"""The real checkpointer, with a look at what it would write; see :mod:`.watched_stage`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from naspipe.config.ids import FIRST_STREAM, LayerId, SequenceId, StageId
from naspipe.store.shards import Header
from naspipe.worker.checkpoints import capturing
from naspipe.worker.checkpoints import checkpointer as checkpoint_part
from naspipe.worker.checkpoints import restored as capture_memory
from naspipe.worker.checkpoints.checkpointer import Checkpointer, CheckpointStream
from naspipe.worker.checkpoints.restored import Block, Captured, Span, layer_key
from naspipe.worker.layers.layer_store import LayerStore
from tests.happens_before import gpu_memory
from tests.happens_before.clocks import ToldDeque, ToldQueue
from tests.happens_before.torch_on_gpu import TorchOnGpu
from tests.happens_before.watched_layers import SPACE, expect_bytes, pattern, version_after
from tests.happens_before.wire import span_of_frame

ITEM_BYTES = 4
MOST_UNWRITTEN = 2
"""Cuts that are finished; another one would have the thread wait."""


class WatchedCaptures:
    """Captures layers, and looks at them on the thread that writes.

    Args:
        torch_: the GPU.
        store: the stage's layers.
    """

    def __init__(self, torch_: TorchOnGpu, store: LayerStore) -> None:
        self._torch, self._recorder, self._store = torch_, torch_.recorder, store
        folder = SimpleNamespace(working=lambda name, generation: Path(name))
        streams = [CheckpointStream(SPACE, folder, store, None, self)]
        self.checkpointer = opened = Checkpointer(StageId(0), 0, streams, 0, self, lambda: None)
        opened._memory._free = ToldDeque(self._recorder)
        opened._outcomes, opened._steps = ToldDeque(self._recorder), ToldQueue(self._recorder)
        opened._thread, opened._logs = SimpleNamespace(), lambda stream: ()
        self._thread = self._recorder.actor("writing thread")
        self._captured: dict[int, dict[str, tuple[LayerId, int]]] = {}
        self._cut = self._written = 0

    def report(self, kind: str, body: Any) -> None:
        """As the launcher's."""

    def may_capture(self, layer: LayerId) -> bool:
        """Whether it is not in the checkpoint that is not finished yet."""
        return layer_key(SPACE, layer) not in self._captured.get(self._cut, ())

    @property
    def waits(self) -> bool:
        """Whether something waits for the thread that writes."""
        return bool(len(self.checkpointer._steps))

    @property
    def may_finish(self) -> bool:
        """Whether there is something to finish, and nothing to wait for."""
        return self._cut in self._captured and self._cut - self._written < MOST_UNWRITTEN

    def capture(self, layer: LayerId, writes: int) -> None:
        """As the command, of a layer that has seen so many WRITEs."""
        _ = self._store[layer]
        self._captured.setdefault(self._cut, {})[layer_key(SPACE, layer)] = (layer, writes)
        with patch.object(checkpoint_part, "ShardWriter", partial(WatchedShard, self, self._cut)):
            self.checkpointer.capture(layer, (version_after(writes),), SequenceId(self._cut))

    def finish_cut(self) -> None:
        """As the command."""
        self.checkpointer.finish(FIRST_STREAM, SequenceId(self._cut))
        self._cut += 1

    def write(self) -> None:
        """What waits first, on the thread that writes."""
        with self._recorder.as_actor(self._thread):
            self.checkpointer._write(*self.checkpointer._steps.get())

    def read(self, data: memoryview) -> bytes:
        """What the thread that writes finds there."""
        self._torch.touch(span_of_frame(data), False, "writing a checkpoint")
        return bytes(data)

    def look_at(self, cut: int, header: Header, data: bytes) -> None:
        """Whether a checkpoint holds what was captured, one layer behind the other."""
        self._written += 1
        (items,) = header._items.values()
        view = memoryview(data)
        for prefix, listing, _ in items.pieces:
            layer, writes = self._captured[cut][prefix.rstrip("/")]
            for name, shape in listing.tensors:
                nbytes = ITEM_BYTES * torch.Size(shape).numel()
                byte = pattern(layer, writes, name)
                expect_bytes(self._recorder, view[:nbytes], byte, f"captured {name}")
                view = view[nbytes:]


class WatchedShard:
    """As a shard's writer."""

    def __init__(self, captures: WatchedCaptures, cut: int, path: Path) -> None:
        self._captures, self._cut = captures, cut
        self._found: dict[int, bytes] = defaultdict(bytes)

    def append(self, block: memoryview, room: int) -> None:
        """Look at a block."""
        self._found[ITEM_BYTES] += self._captures.read(block)

    def finish(
        self, header: Header, streamed: int, rest: Mapping[int, Sequence[memoryview]]
    ) -> None:
        """Look at the rest."""
        for data in rest[ITEM_BYTES]:
            self._found[ITEM_BYTES] += self._captures.read(data)
        self._captures.look_at(self._cut, header, self._found[ITEM_BYTES])

    def abort(self) -> None:
        """There is no file."""


@contextmanager
def watched_captures(torch_: TorchOnGpu) -> Iterator[None]:
    """What captures read, and where they leave it, is told."""
    make, reserve, memmove = Block.__init__, Captured.reserve, capturing.memmove

    def told_make(block: Block) -> None:
        make(block)
        torch_.watched.append((block.address, block.address + len(block.view)))

    def told_reserve(captured: Captured, nbytes: int, item_bytes: int) -> Sequence[Span]:
        spans = reserve(captured, nbytes, item_bytes)
        for span in spans:
            torch_.touch(gpu_memory.Span(span.address, len(span.view)), True, "capture")
        return spans

    def told_memmove(target: int, source: int, nbytes: int) -> None:
        torch_.touch(gpu_memory.Span(source, nbytes), False, "capture of host memory")
        memmove(target, source, nbytes)

    with (
        patch.object(Block, "__init__", told_make),
        patch.object(Captured, "reserve", told_reserve),
        patch.object(capturing, "memmove", told_memmove),
        patch.object(capture_memory, "BLOCK_BYTES", 2 << 10),
    ):
        yield
