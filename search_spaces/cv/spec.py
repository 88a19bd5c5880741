"""The blocks and candidates of the spaces cv.c1 to cv.c3.

A candidate is one of up to 4 activations followed by one of 12 operations. Candidates are numbered
activation by activation, so candidate k of a smaller space is candidate k of a larger one.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from naspipe.config.blocks import Block, Shared
from naspipe.config.rules import Exact, Lag, Rule
from search_spaces.common import Defaults
from search_spaces.cv.choices import BLOCKS, CANDIDATES, Operation

WIDTHS = {"tiny": 24, "small": 64, "paper": 1216}
HALVINGS = {"tiny": 1, "small": 1, "paper": 4}
"""How often the stem halves height and width."""

INFO = ("channels", "height", "width", "classes")
"""Values that the data must state."""

SHARED_RULES: dict[str, Rule] = {"stem": Lag(1, over=100, predicts=True), "head": Exact()}
"""Training on a stale stem reduces accuracy, above all at the beginning.

The lag is therefore the smallest that helps, and starts at step 100 (docs/rules.md).
"""


def chain(
    name: str, scale: str, info: Mapping[str, int], rule: Mapping[str, Rule]
) -> list[Block | Shared]:
    """Return the blocks of a space, with a rule for each shared layer."""
    width = WIDTHS[scale]
    listed = CANDIDATES.of(name)
    candidates = [partial(_candidate, width, *candidate) for candidate in listed]
    return [
        Shared("stem", partial(_stem, info["channels"], width, HALVINGS[scale]), rule["stem"]),
        *(Block(candidates, kind="cell") for _ in range(BLOCKS)),
        Shared("head", partial(_head, width, info["classes"]), rule["head"]),
    ]


def defaults(name: str, scale: str) -> Defaults:
    return Defaults(
        data="fashion-mnist",
        batch_size={"tiny": 32, "small": 64, "paper": 64}[scale],
        optimizer="SGD",
        lr=0.015,
        optimizer_options=MappingProxyType({"momentum": 0.9}),
        loss=_loss,
    )


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
