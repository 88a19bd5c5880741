"""Networks for the cases on GPUs, beside those of tests/equivalence/spaces.py."""

from __future__ import annotations

import torch
from torch import nn

import naspipe as npp
from naspipe.wire.tensor_codec import ALIGNMENT, HOST_ALIGNMENT
from tests.equivalence import spaces

CAP_BYTES = 448 << 20
"""Of the case that runs short of memory: its graphs take about twice that."""

BIG = (64, 65536)
"""Its batches: width and rows."""


class Hungry(nn.Module):
    """Keeps four times its input for its backward."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 64)

    def forward(self, x):
        return x + self.linear(torch.tanh(x).sin().cos()) * 0.1


def hungry():
    return npp.Space("hungry", [
        npp.Shared("stem", lambda: nn.Linear(64, 64), rule=npp.Lag(2)),
        *(npp.Block([Hungry, Hungry], kind="hungry") for _ in range(14)),
        npp.Shared("head", lambda: nn.Linear(64, 10)),
    ])  # fmt: skip


def capped_vectors(seed, sequence_id):
    """Big batches; a stage that asks for one is limited to :data:`CAP_BYTES` of GPU memory."""
    if torch.cuda.is_initialized():
        share = CAP_BYTES / torch.cuda.mem_get_info()[1]
        torch.cuda.set_per_process_memory_fraction(share)
    return big_vectors(seed, sequence_id)


def big_vectors(seed, sequence_id):
    return spaces.vectors(seed, sequence_id, *BIG)


class Offset(nn.Module):
    """Hands on a view that begins inside of its storage, and remembers where its input began.

    The buffer says in bits whether an input keeps its alignment on the way between stages.
    """

    def __init__(self, width, offset, is_strided=False):
        super().__init__()
        self.linear = nn.Linear(width, width + 1 if is_strided else width)
        self.offset, self.width, self.is_strided = offset, width, is_strided
        self.register_buffer("phase", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        alignment = ALIGNMENT if x.is_cuda else HOST_ALIGNMENT
        self.phase.fill_(x.data_ptr() % alignment)
        hidden = torch.tanh(self.linear(x))
        if self.is_strided:
            return hidden[:, 1:]
        room = nn.functional.pad(hidden.flatten(), (self.offset, 3))
        return room[self.offset : self.offset + hidden.numel()].view(-1, self.width)


def offsets(width=32):
    """Blocks whose outputs begin 4, 20, 64 and 256 bytes into their storage, and every 33rd."""

    def block():
        return npp.Block([
            *(lambda n=n: Offset(width, n) for n in (1, 5, 16, 64)),
            lambda: Offset(width, 0, is_strided=True),
        ], kind="offset")  # fmt: skip

    return npp.Space("offsets", [
        npp.Shared("stem", lambda: nn.Linear(16, width), rule=npp.Lag(2)),
        *(block() for _ in range(6)),
        npp.Shared("head", lambda: nn.Linear(width, 10)),
    ])  # fmt: skip
