"""Small spaces, each with something that could break bits."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

import naspipe as npp


class Residual(nn.Module):
    def __init__(self, width, norm, dropout=0.0):
        super().__init__()
        self.linear, self.norm, self.drop = (
            nn.Linear(width, width),
            norm(width),
            nn.Dropout(dropout),
        )

    def forward(self, x):
        return x + self.drop(torch.relu(self.linear(self.norm(x))))


class Absent(nn.Module):
    """Has a parameter that never gets a gradient."""

    def __init__(self, width):
        super().__init__()
        self.used, self.unused = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x):
        return self.used(x)


class Pair(nn.Module):
    """Returns a second tensor that the next block may ignore."""

    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x, side=None):
        hidden = self.linear(x)
        return hidden, hidden * 2 + (0 if side is None else side)


class IgnoreSide(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x, side):
        return self.linear(x), side.detach()


class Attend(nn.Module):
    """Reads its memory twice, by separate key and value projections, and hands it on."""

    def __init__(self, width):
        super().__init__()
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.value, self.norm = nn.Linear(width, width), nn.LayerNorm(width)

    def forward(self, x, memory):
        q, k, v = self.query(self.norm(x)), self.key(memory), self.value(memory)
        return x + functional.scaled_dot_product_attention(q, k, v), memory


class Encode(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear, self.other = nn.Linear(16, width), nn.Linear(16, width)

    def forward(self, x):
        return self.linear(x), self.other(x)


class ToSpectrum(nn.Module):
    """Returns what torch conjugates when it is read."""

    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        return torch.fft.rfft(self.linear(x)).conj()


class FromSpectrum(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, spectrum):
        return self.linear(torch.fft.irfft(spectrum))


class First(nn.Module):
    """Keeps the first of several tensors."""

    def __init__(self, width, classes):
        super().__init__()
        self.linear = nn.Linear(width, classes)

    def forward(self, x, *others):
        return self.linear(x).mean(1) if x.dim() == 3 else self.linear(x)


class ChannelsLast(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width)

    def forward(self, x):
        return x + self.norm(self.conv(x)).contiguous(memory_format=torch.channels_last)


class Pool(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, 10)

    def forward(self, x):
        return self.linear(x.mean((2, 3)))


def vectors(seed, sequence_id, width=16, rows=12):
    draw = torch.Generator().manual_seed(seed * 1_000_003 + sequence_id)
    return {
        "input": torch.randn(rows, width, generator=draw),
        "target": torch.randint(0, 10, (rows,), generator=draw),
    }


def sequences(seed, sequence_id):
    draw = torch.Generator().manual_seed(seed * 1_000_003 + sequence_id)
    return {
        "input": torch.randn(4, 7, 16, generator=draw),
        "target": torch.randint(0, 10, (4,), generator=draw),
    }


def images(seed, sequence_id):
    draw = torch.Generator().manual_seed(seed * 1_000_003 + sequence_id)
    pixels = torch.randn(4, 1, 8, 8, generator=draw)
    return {"input": pixels, "target": torch.randint(0, 10, (4,), generator=draw)}


def mixed(front=None, end=None, dropout=0.1, blocks=6):
    """Dropout, BatchNorm, LayerNorm, no parameters, absent gradients."""
    return npp.Space("mixed", [
        npp.Shared("stem", lambda: nn.Linear(16, 24), rule=front or npp.Lag(3)),
        *(npp.Block([
            lambda: Residual(24, nn.LayerNorm, dropout),
            lambda: Residual(24, nn.BatchNorm1d, dropout),
            nn.Identity,
            lambda: Absent(24),
        ], kind="mixed") for _ in range(blocks)),
        npp.Shared("head", lambda: nn.Linear(24, 10), rule=end or npp.Exact()),
    ])  # fmt: skip


def several():
    """Blocks that pass two tensors, one of them without a gradient at times."""
    return npp.Space("several", [
        npp.Shared("stem", lambda: nn.Linear(16, 24), rule=npp.Lag(2)),
        npp.Block([lambda: Pair(24)] * 2),
        *(npp.Block([lambda: Pair(24), lambda: IgnoreSide(24)]) for _ in range(4)),
        npp.Shared("head", lambda: First(24, 10)),
    ])  # fmt: skip


def spectra():
    """Blocks that pass complex tensors, which torch conjugates when they are read."""
    there, back = [lambda: ToSpectrum(24)] * 2, [lambda: FromSpectrum(24)] * 2
    return npp.Space("spectra", [
        npp.Shared("stem", lambda: nn.Linear(16, 24), rule=npp.Lag(2)),
        *(npp.Block(candidates) for candidates in (there, back, there, back)),
        npp.Shared("head", lambda: nn.Linear(24, 10)),
    ])  # fmt: skip


class HandOn(nn.Module):
    """Nothing, of several tensors."""

    def forward(self, *state):
        return state


def memory(*others):
    """An encoder's output read twice by every later block."""
    return npp.Space("memory", [
        npp.Shared("encode", lambda: Encode(24), rule=npp.Lag(2)),
        *(npp.Block([lambda: Attend(24), lambda: Attend(24), *others]) for _ in range(5)),
        npp.Shared("head", lambda: First(24, 10)),
    ])  # fmt: skip


def maps():
    """Channels-last maps between blocks."""
    return npp.Space("maps", [
        npp.Shared("stem", lambda: nn.Conv2d(1, 8, 3, padding=1), rule=npp.Lag(2)),
        *(npp.Block([lambda: ChannelsLast(8), lambda: nn.Conv2d(8, 8, 1)]) for _ in range(5)),
        npp.Shared("head", lambda: Pool(8)),
    ])  # fmt: skip
