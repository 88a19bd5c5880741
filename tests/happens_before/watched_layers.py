"""A small space whose tensors hold bytes that say whose they are, and after how many WRITEs."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import nn

from naspipe.config.blocks import Block, Shared
from naspipe.config.ids import FIRST_STREAM, INITIAL, LayerId, Version
from naspipe.config.recipe import Recipe
from naspipe.config.rules import Exact
from naspipe.config.space import Space
from naspipe.worker.layers.layout import StateSizes
from naspipe.worker.layers.stored_layer import StoredLayer
from tests.happens_before.clocks import Recorder, WrongBytesError
from tests.happens_before.gpu_memory import DEVICE, Span
from tests.happens_before.torch_on_gpu import TorchOnGpu, span_of

RECIPE = Recipe(optimizer="SGD", lr=0.1, optimizer_options={"momentum": 0.9})


class Plain(nn.Module):
    """Two parameters."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(140))
        self.bias = nn.Parameter(torch.zeros(20))


class Counting(Plain):
    """And a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(20))


SPACE = Space("watched", [
    Shared("stem", Plain, rule=Exact()),
    Block([Plain, Counting]),
    Block([Counting, Plain]),
])  # fmt: skip
STEM = LayerId(FIRST_STREAM, 0, 0)
"""It is permanent."""
LAYERS = (STEM, *(LayerId(FIRST_STREAM, block, one) for block in (1, 2) for one in (0, 1)))


def known_sizes() -> StateSizes:
    """What the optimizer's state takes, learnt before there is a GPU."""
    sizes = StateSizes(RECIPE)
    for parameter in Plain().parameters():
        sizes.of(parameter)
    return sizes


SIZES = known_sizes()


def pattern(layer: LayerId, writes: int, name: str) -> int:
    """The byte that a tensor of a layer is full of after so many WRITEs."""
    own = LAYERS.index(layer) * 41 + zlib.crc32(name.encode()) % 199
    return (own + writes * 7) % 256


def version_after(writes: int) -> Version:
    """Its version then."""
    return Version(INITIAL + writes)


class Part(NamedTuple):
    """Bytes, and what they have to be."""

    span: Span
    byte: int


def parts_of(layer: LayerId, stored: StoredLayer, writes: int) -> list[Part]:
    """Where a layer's tensors are now."""
    return [
        Part(span_of(tensor), pattern(layer, writes, name)) for name, tensor in stored.tensors()
    ]


def read_parts(layer: LayerId, stored: StoredLayer, writes: int) -> list[Part]:
    """Those that forwards and backwards read."""
    return [
        Part(span_of(tensor), pattern(layer, writes, name))
        for name, tensor in stored.tensors()
        if not name.startswith("optimizer/")
    ]


def expect_bytes(recorder: Recorder, data: Any, byte: int, what: str) -> None:
    """Report host memory that is not full of a byte."""
    if bytes(data).count(byte) != len(data):
        recorder.report(WrongBytesError(f"{what} holds something else"))


def launch_kernel(
    torch_: TorchOnGpu, what: str, reads: Iterable[Part], writes: Iterable[Part]
) -> None:
    """Queue a kernel that looks whether it finds what it has to, and leaves what it has to."""
    found, left = list(reads), list(writes)

    def run() -> None:
        for span, byte in found:
            if not (DEVICE.bytes(span) == byte).all():
                torch_.recorder.report(WrongBytesError(f"{what} read something else"))
        for span, byte in left:
            DEVICE.bytes(span)[:] = byte

    torch_.launch(what, [part.span for part in found], [part.span for part in left], run)
