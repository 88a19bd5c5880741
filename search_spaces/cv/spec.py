"""The spaces cv.c1 to cv.c3: what their blocks and candidates are.

A candidate is one of 12 operations behind one of up to 4 activations. Candidates are numbered
activation by activation, so candidate k of a smaller space is candidate k of a larger one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

from naspipe.core.rules import Exact, Lag, Rule
from naspipe.core.space import Block, Shared, Space
from search_spaces.common import Defaults, require, shared_rules

BLOCKS = 32

ACTIVATIONS = ("relu", "swish", "leaky relu", "none")
"""Applied to an operation's input."""

VARIANT_COUNTS = {"cv.c1": 4, "cv.c2": 2, "cv.c3": 1}
"""How many of the activations each space has."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One kind of layer; prints as ``dilated separable 3x3``."""

    kind: str
    """``identity``, ``separable``, ``dilated separable``, ``conv``, ``conv pair``, ``average
    pool`` or ``max pool``."""
    kernel: int = 1
    """Pixels that it sees in each direction."""

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

WIDTHS = {"tiny": 24, "small": 64, "paper": 1216}
HALVINGS = {"tiny": 1, "small": 1, "paper": 4}
"""How often the stem halves height and width."""

_SHARED_RULES: dict[str, Rule] = {"stem": Lag(8), "head": Exact()}


def candidate_names(name: str) -> tuple[str, ...]:
    """What each candidate of a block is, in words."""
    return tuple(
        f"{operation}, {activation}" for operation, activation in _candidates(VARIANT_COUNTS[name])
    )


def build(
    name: str, scale: str, info: Mapping[str, int], rules: Mapping[str, Rule] | None = None
) -> Space:
    """The space ``name`` (see :func:`search_spaces.build`)."""
    channels, _, _, classes = require(name, info, ("channels", "height", "width", "classes"))
    rule = shared_rules(name, _SHARED_RULES, rules)
    width = WIDTHS[scale]
    listed = _candidates(VARIANT_COUNTS[name])
    candidates = [partial(_candidate, width, *candidate) for candidate in listed]
    return Space(
        name,
        [
            Shared("stem", partial(_stem, channels, width, HALVINGS[scale]), rule["stem"]),
            *(Block(candidates, kind="cell") for _ in range(BLOCKS)),
            Shared("head", partial(_head, width, classes), rule["head"]),
        ],
    )


def defaults(scale: str) -> Defaults:
    """What a run uses unless its user says otherwise."""
    return Defaults(
        data="fashion-mnist",
        batch_size={"tiny": 32, "small": 64, "paper": 64}[scale],
        optimizer="SGD",
        lr=0.015,
        optimizer_options=MappingProxyType({"momentum": 0.9}),
        loss=_loss,
    )


def _candidates(num_variants: int) -> list[tuple[Operation, str]]:
    return [
        (operation, activation)
        for activation in ACTIVATIONS[:num_variants]
        for operation in OPERATIONS
    ]


# Factories import torch's modules only when they make one.


def _candidate(width: int, operation: Operation, activation: str) -> Any:
    from search_spaces.cv.layers import Candidate

    return Candidate(width, operation, activation)


def _stem(channels: int, width: int, halvings: int) -> Any:
    from search_spaces.cv.layers import Stem

    return Stem(channels, width, halvings)


def _head(width: int, classes: int) -> Any:
    from search_spaces.cv.layers import Head

    return Head(width, classes)


def _loss() -> Any:
    from torch import nn

    return nn.CrossEntropyLoss()
