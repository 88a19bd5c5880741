"""The choices of a translation space: 24 operations in each of 48 blocks."""

from __future__ import annotations

from dataclasses import dataclass

from search_spaces.common import Candidates

ENCODER_BLOCKS = 24
DECODER_BLOCKS = 24

ACTIVATIONS = ("none", "relu", "swish", "leaky relu")
"""Applied to an operation's output before it is added to the input."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One kind of layer; prints as ``light 7x1, 4 heads``."""

    kind: str
    """``conv``, ``separable``, ``light``, ``attention`` or ``glu``."""
    kernel: int = 1
    """Number of tokens that a convolution covers."""
    heads: int = 1
    """Number of groups of channels with a separate kernel or attention."""

    def __str__(self) -> str:
        sized = f" {self.kernel}x1" if self.kind in ("conv", "separable", "light") else ""
        headed = f", {self.heads} heads" if self.kind in ("light", "attention") else ""
        return f"{self.kind}{sized}{headed}"


OPERATIONS = (
    *(Operation("conv", kernel) for kernel in (1, 3, 5)),
    *(Operation("separable", kernel) for kernel in (3, 5, 7, 9, 11)),
    *(Operation("light", kernel, heads) for kernel in (3, 5, 7, 15) for heads in (1, 4, 16)),
    *(Operation("attention", heads=heads) for heads in (4, 8, 16)),
    Operation("glu"),
)

CANDIDATES = Candidates(
    OPERATIONS, ACTIVATIONS, {"nlp.c0": 4, "nlp.c1": 3, "nlp.c2": 2, "nlp.c3": 1}
)
