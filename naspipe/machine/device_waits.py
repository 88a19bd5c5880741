"""Every wait for a GPU that this program causes: its name, its reason, and its count.

Code that waits calls :func:`wait_for` or :func:`on_host`, or reports itself with :func:`count`. An
emulated device counts where a GPU would be waited for. Counts are those of the process, which is
one stage. Waits inside torch and CUDA, such as when memory runs out, are not included.
"""

from __future__ import annotations

import threading
from collections import Counter
from enum import Enum
from typing import NamedTuple

import torch


class Reason(NamedTuple):
    """Description of a wait for docs/gpus.md."""

    where: str
    reason: str
    often: str


class Wait(Enum):
    """Names of waits; manifests and docs/gpus.md have them in lower case."""

    BLOCK = Reason(
        "`Placement.finish_block`",
        "the host is one block ahead at most, so times are those of blocks",
        "once per block",
    )
    SEND = Reason(
        "`Staging.wait`",
        "what another stage is sent lies in host memory",
        "once per message with tensors",
    )
    COPY = Reason(
        "`CudaDevice`",
        "host memory could not be pinned, so a layer is copied while the host waits",
        "once per load or save, then",
    )
    FIELD = Reason(
        "`Placement.to_device`", "a batch is not in pinned memory", "once per field of a batch"
    )
    LAYER = Reason(
        "`StoredLayer.move`",
        "a layer is made in host memory",
        "once per layer that stays on the GPU",
    )
    HANDED_OVER = Reason(
        "`decode_into`",
        "a layer from another stage is put in its place",
        "per tensor of a layer that stays on the GPU",
    )
    BUFFER = Reason(
        "`Segment.forward`",
        "whether a forward wrote a buffer; not for batch norm under the rule `exact`",
        "per other buffer",
    )
    INPUT = Reason(
        "`left_as_it_is`",
        "whether a layer edits what it is given, as by `x.data`",
        "per input and field, the first time that a stage calls a layer",
    )
    FINITE = Reason(
        "`first_gradient`", "whether a loss is finite; not with `nonfinite=keep`", "once per loss"
    )
    LOSS = Reason("`StageFiles.result`", "a loss is told and recorded", "once per loss")
    METRIC = Reason(
        "`StageFiles.result`", "a metric is told and recorded", "once per loss and metric"
    )
    NORM = Reason(
        "`NormExchange`", "other stages are told norms of gradients", "once per step that clips"
    )
    CAPTURE = Reason(
        "`Lease.keep`",
        "a checkpoint's copy lies in host memory",
        "once per kind of tensors of a layer",
    )
    DIGEST = Reason(
        "`StoredLayer.digest`", "a layer's bytes are hashed, with `digests`", "per tensor"
    )
    TRUST = Reason(
        "`LARS`", "a layer's rate follows from two norms", "twice per matrix, in the WRITE"
    )
    ENTRIES = Reason(
        "`take_step`",
        "which entries a step moves is known in host memory",
        "per parameter of an elastic layer that is stepped by the slice, in the WRITE",
    )
    SCORE = Reason(
        "`batch_sums`", "a subnet is judged by numbers", "four times at most per batch, in searches"
    )
    CLOCK = Reason("`CudaClock`", "what a block costs", "in the profile alone")
    RING = Reason(
        "`DeviceRings`",
        "what another stage is told of lies in the ring",
        "once per message with tensors, with CUDA IPC",
    )
    OPENING = Reason("`Pairs`", "NCCL's communicators are open", "once per run, with NCCL")


_counts: Counter[Wait] = Counter()
_lock = threading.Lock()


def begin() -> None:
    """Reset the counts when a stage begins in this process."""
    with _lock:
        _counts.clear()


def count(why: Wait) -> None:
    """Record a wait; may be called from any thread."""
    with _lock:
        _counts[why] += 1


def per_block(blocks: int) -> dict[str, float]:
    """Return the average number per block of each wait that occurred since :func:`begin`."""
    with _lock:
        return {why.name.lower(): _counts[why] / max(1, blocks) for why in Wait if _counts[why]}


def wait_for(queued: torch.cuda.Stream | torch.cuda.Event, why: Wait) -> None:
    """Wait for all work in a queue, or for an event."""
    count(why)
    queued.synchronize()


def on_host(tensor: torch.Tensor, why: Wait) -> torch.Tensor:
    """Return the tensor itself if it is in host memory, or else a copy in host memory."""
    if tensor.is_cpu:
        return tensor
    count(why)
    return tensor.cpu()
