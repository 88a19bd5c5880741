"""Reports of a plain loop for each step: the bits of losses and a digest of every tensor."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import torch

from naspipe.config.errors import NaspipeError

LayerDigests = Mapping[str, str]
"""Digests of one layer by the tensor's name in a checkpoint, such as ``param/weight``."""


class NotVerifiable(NaspipeError):  # noqa: N818
    """The plain loop does not support this run; the message starts with "because"."""


@dataclass(frozen=True, slots=True)
class StreamRecord:
    """The results of one step of one stream."""

    losses: tuple[str, ...] = ()
    """The bits of each pass's loss, in pass order; see :func:`loss_bits`."""
    layers: Mapping[str, LayerDigests] = field(default_factory=dict)
    """The layers that the step wrote, by label."""
    hints: tuple[tuple[str, str], ...] = ()
    """Observations about layers, by label, and about the loss that may explain a difference."""
    remembered: tuple[tuple[str, str], ...] = ()
    """Labels of layers, with attributes that a forward changes and checkpoints do not contain."""


@dataclass(frozen=True, slots=True)
class StepRecord:
    """The results of one step of a plain loop."""

    step: int
    streams: tuple[StreamRecord, ...]
    """One record per stream, in the order of the workloads. The record of a stream that is not
    trained and follows no other is empty."""


def loss_bits(loss: torch.Tensor) -> str:
    """Return the bytes of a loss in hexadecimal, most significant first, as in ``losses.jsonl``."""
    raw = bytes(loss.detach().cpu().reshape(1).view(torch.uint8).tolist())
    return (raw[::-1] if sys.byteorder == "little" else raw).hex()


def tensor_digest(value: Any) -> str:
    """Return a digest of a tensor's dtype, shape and bytes; of any other value, of its ``repr``."""
    digest = blake2b(digest_size=8)
    if isinstance(value, torch.Tensor):
        dense = value.detach().cpu()
        flat = torch.empty(dense.numel(), dtype=dense.dtype)
        flat.view(dense.shape).copy_(dense)
        digest.update(f"{dense.dtype}{tuple(dense.shape)}".encode())
        digest.update(flat.view(torch.uint8).numpy().data)
    else:
        digest.update(repr(value).encode())
    return digest.hexdigest()
