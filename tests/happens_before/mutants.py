"""Orders that are missing: each of these changes takes one away, and has to be found.

A mutant is a context manager; cases that run while it is entered run the changed code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from typing import Any
from unittest.mock import patch

import torch

from naspipe.machine.cuda import CudaCopy, CudaDevice
from naspipe.machine.staging import Staging
from naspipe.wire.shared_rings import SharedFrames
from naspipe.worker.checkpoints.checkpointer import Checkpointer
from naspipe.worker.checkpoints.restored import Captured
from naspipe.worker.layers.resident_layer import LayerMemory
from naspipe.worker.placement import SwapKind, SwappedPlacement, Swapper
from tests.happens_before.torch_on_gpu import GPU
from tests.happens_before.watched_stage import WatchedStage

Mutant = Callable[[], AbstractContextManager[None]]

MUTANTS: dict[str, Mutant] = {}
"""By what is wrong."""


def changes(
    what: str, owner: type, name: str
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """List a method that is put in another one's place; it is handed the other one first."""

    def listed(changed: Callable[..., Any]) -> Callable[..., Any]:
        @contextmanager
        def mutant() -> Iterator[None]:
            original = getattr(owner, name)

            @wraps(changed)
            def method(*arguments: Any, **options: Any) -> Any:
                return changed(original, *arguments, **options)

            with patch.object(owner, name, method):
                yield

        MUTANTS[what] = mutant
        return changed

    return listed


def _copy_behind(
    device: CudaDevice, source: Any, target: Any, queue: Any, mark: Any = None
) -> CudaCopy:
    """As the device's own, but behind a mark, or nothing."""
    if mark is not None:
        queue.wait_event(mark)
    with torch.cuda.stream(queue):
        target.copy_(source, non_blocking=True)
    end = torch.cuda.Event()
    end.record(queue)
    return CudaCopy(end, end)


@changes("a load does not wait for the compute", CudaDevice, "copy_in")
def _load_at_once(original: Any, self: Any, host: Any, device: Any) -> CudaCopy:
    return _copy_behind(self, host, device, self._load)


@changes("a save does not wait for the compute", CudaDevice, "copy_out")
def _save_at_once(original: Any, self: Any, device: Any, host: Any) -> CudaCopy:
    return _copy_behind(self, device, host, self._save)


@changes("a save waits for the compute before the last one", CudaDevice, "copy_out")
def _old_mark(original: Any, self: Any, device: Any, host: Any) -> CudaCopy:
    fresh = self.mark()
    mark, self._mark_before = getattr(self, "_mark_before", fresh), fresh
    return _copy_behind(self, device, host, self._save, mark)


@changes("a copy is reported before its event", CudaCopy, "is_over")
def _report_early(original: Any, self: Any) -> bool:
    return True


@changes("a save begins before new optimizer state is moved in", Swapper, "save")
def _adopt_late(original: Any, self: Any, layer: Any, memory: Any) -> None:
    self._check_resting("saved", layer, memory)
    self._start(SwapKind.SAVED, layer, memory)
    memory.adopt_state()


@contextmanager
def _evict_early() -> Iterator[None]:
    settle = Swapper._settle

    def may_evict(self: WatchedStage, layer: Any) -> bool:
        where = self.where[layer]
        return where == "saving" or (where == "resident" and layer not in self.dirty)

    def check_resting(self: Any, what: str, layer: Any, memory: Any) -> None:
        """What is copied is taken for resting."""

    def settle_again(self: Any, kind: Any, job: Any) -> Any:
        self._copying.setdefault(job.layer, kind)
        return settle(self, kind, job)

    with (
        patch.object(WatchedStage, "may_evict", may_evict),
        patch.object(Swapper, "_check_resting", check_resting),
        patch.object(Swapper, "_settle", settle_again),
    ):
        yield


MUTANTS["a layer is evicted before its save is done"] = _evict_early


@changes("a layer that is absent is looked at where it was", LayerMemory, "_come_home")
def _stay_away(original: Any, self: Any) -> None:
    """It is not brought to host memory."""


@changes("host memory is given back before it is sent", SwappedPlacement, "leave")
def _leave_at_once(original: Any, self: Any, layer: Any, is_sent: Any) -> None:
    original(self, layer, lambda: True)


@contextmanager
def _lend() -> Iterator[None]:
    with patch.object(SwappedPlacement, "shares_memory", False):
        yield


MUTANTS["copies for others share the layer's memory"] = _lend


@changes("outputs are sent without a wait", Staging, "wait")
def _never_wait(original: Any, self: Any) -> None:
    """Nothing is waited for."""


@changes("outputs are copied beside the compute", Staging, "to_host")
def _copy_beside(original: Any, self: Any, raw: Any) -> Any:
    if raw.device != GPU:
        return original(self, raw)
    queue = torch.cuda.Stream(GPU)
    with torch.cuda.stream(queue):
        host = original(self, raw)
    queue.synchronize()
    return host


@changes("one piece of staging for all", Staging, "allocate")
def _one_piece(original: Any, self: Any, nbytes: int) -> Any:
    if not hasattr(self, "_piece"):
        self._piece = original(self, 8 << 10)
    return self._piece[:nbytes]


@changes("a ring is given back before it is read", SharedFrames, "unpack")
def _give_back_early(original: Any, self: Any, frames: Any) -> Any:
    whole = original(self, frames)
    self.give_back()
    return whole


@changes("a block of a checkpoint is handed on before it is filled", Captured, "reserve")
def _hand_on_early(original: Any, self: Any, nbytes: int, item_bytes: int) -> Any:
    spans = original(self, nbytes, item_bytes)
    self._hand_on_full(self._lanes[item_bytes], item_bytes)
    return spans


@changes("a checkpoint's memory is lent again before it is written", Checkpointer, "_hand_on")
def _end_early(original: Any, self: Any, step: Any) -> None:
    if step.block is not None:
        self._memory.give_back(step.block)
    original(self, step)
