"""The choices of an image space: 12 operations in each of 32 blocks."""

from __future__ import annotations

from dataclasses import dataclass

from search_spaces.common import Candidates

BLOCKS = 32

ACTIVATIONS = ("relu", "swish", "leaky relu", "none")
"""Applied to an operation's input."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One kind of layer; prints as ``dilated separable 3x3``."""

    kind: str
    """``identity``, ``separable``, ``dilated separable``, ``conv``, ``conv pair``, ``average
    pool`` or ``max pool``."""
    kernel: int = 1
    """Size in pixels in each direction."""

    def __str__(self) -> str:
        if self.kind == "identity":
            return self.kind
        if self.kind == "conv pair":
            return f"conv 1x{self.kernel} then {self.kernel}x1"
        return f"{self.kind} {self.kernel}x{self.kernel}"


OPERATIONS = (
    Operation("identity"),
    *(Operation("separable", kernel) for kernel in (3, 5, 7)),
    *(Operation("dilated separable", kernel) for kernel in (3, 5)),
    Operation("conv pair", 7),
    Operation("conv", 1),
    Operation("conv", 3),
    Operation("average pool", 3),
    Operation("max pool", 3),
    Operation("conv pair", 3),
)

CANDIDATES = Candidates(OPERATIONS, ACTIVATIONS, {"cv.c1": 4, "cv.c2": 2, "cv.c3": 1})
