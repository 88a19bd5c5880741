"""The real checkpointer, with a look at what it would write; see :mod:`.watched_stage`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from naspipe.core.ids import FIRST_STREAM, LayerId, SequenceId, StageId
from naspipe.runtime.checkpoints import capture_memory, capturing
from naspipe.runtime.checkpoints.capture_memory import Lease
from naspipe.runtime.checkpoints.checkpointer import Checkpointer, CheckpointStream
from naspipe.runtime.checkpoints.layer_bytes import layer_key
from naspipe.runtime.layers.layer_store import LayerStore
from tests.happens_before.clocks import ToldDeque, ToldQueue
from tests.happens_before.gpu_memory import Span
from tests.happens_before.torch_on_gpu import TorchOnGpu
from tests.happens_before.watched_layers import SPACE, expect_bytes, pattern, version_after
from tests.happens_before.wire import span_of_frame


class WatchedCaptures:
    """Captures layers, and looks at them on the thread that writes.

    Args:
        torch_: the GPU.
        store: the stage's layers.
    """

    def __init__(self, torch_: TorchOnGpu, store: LayerStore) -> None:
        self._torch, self._recorder, self._store = torch_, torch_.recorder, store
        streams = [CheckpointStream(SPACE, SimpleNamespace(), store, None, self)]
        self.checkpointer = opened = Checkpointer(StageId(0), 0, streams, 0, self, lambda: None)
        opened._memory._free = ToldDeque(self._recorder)
        opened._outcomes, opened._jobs = ToldDeque(self._recorder), ToldQueue(self._recorder)
        opened._thread, opened._write = SimpleNamespace(), self._look_at
        self._thread = self._recorder.actor("writing thread")
        self._captured: dict[int, dict[str, tuple[LayerId, int]]] = {}
        self._cut = 0

    def flush(self) -> None:
        """As a log."""

    def report(self, kind: str, body: Any) -> None:
        """As the launcher's."""

    @property
    def num_captured(self) -> int:
        """Layers of the checkpoint that is not finished yet."""
        return len(self._captured.get(self._cut, ()))

    @property
    def waits(self) -> bool:
        """Whether a checkpoint waits for the thread that writes."""
        return bool(len(self.checkpointer._jobs))

    def capture(self, layer: LayerId, writes: int) -> None:
        """As the command, of a layer that has seen so many WRITEs."""
        _ = self._store[layer]
        self.checkpointer.capture(layer, (version_after(writes),), SequenceId(self._cut))
        self._captured.setdefault(self._cut, {})[layer_key(SPACE, layer)] = (layer, writes)

    def finish_cut(self) -> None:
        """As the command."""
        self.checkpointer.finish(FIRST_STREAM, SequenceId(self._cut))
        self._cut += 1

    def write(self) -> None:
        """What waits, on the thread that writes."""
        with self._recorder.as_actor(self._thread):
            self.checkpointer._work()

    def _look_at(self, job: Any) -> dict[str, Any]:
        for key, snapshot in job.layers.items():
            layer, writes = self._captured[job.cut][key]
            for packed in snapshot.tensors:
                self._torch.touch(span_of_frame(packed.data), False, "writing a checkpoint")
                data = memoryview(packed.data)
                for name, shape in packed.tensors:
                    nbytes = 4 * torch.Size(shape).numel()
                    byte = pattern(layer, writes, name)
                    expect_bytes(self._recorder, data[:nbytes], byte, f"captured {name}")
                    data = data[nbytes:]
        return {}


@contextmanager
def watched_captures(torch_: TorchOnGpu) -> Iterator[None]:
    """What captures read, and where they leave it, is told."""
    take, reserve, memmove = Lease._take, Lease.reserve, capturing.memmove

    def told_take(lease: Lease, nbytes: int) -> Any:
        chunk = take(lease, nbytes)
        span = (chunk.ctypes.data, chunk.ctypes.data + chunk.size)
        if span not in torch_.watched:
            torch_.watched.append(span)
        return chunk

    def told_reserve(lease: Lease, nbytes: int) -> tuple[memoryview, int]:
        data, address = reserve(lease, nbytes)
        torch_.touch(Span(address, nbytes), True, "capture")
        return data, address

    def told_memmove(target: int, source: int, nbytes: int) -> None:
        torch_.touch(Span(source, nbytes), False, "capture of host memory")
        memmove(target, source, nbytes)

    with (
        patch.object(Lease, "_take", told_take),
        patch.object(Lease, "reserve", told_reserve),
        patch.object(capturing, "memmove", told_memmove),
        patch.object(capture_memory, "CHUNK_BYTES", 16 << 10),
    ):
        yield
