"""The definition of a named student."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from naspipe.config.blocks import Block, Shared

Chains = Callable[[str, str, Mapping[str, int]], Sequence[Sequence[Block | Shared]]]
"""(teacher, scale, values that the data state) -> the chain of each student block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudentKind:
    """A student, for any of its teachers."""

    teachers: tuple[str, ...]
    """Names of the networks that it can learn from."""
    recipe: str
    """Default training: the name of a recipe that comes with naspipe."""
    chains: Chains
    loss: Callable[[], Any] | None = None
    """Creates the loss of every block but the last; None for the mean squared difference."""
    last_loss: Callable[[], Any] | None = None
    """Creates the loss of the last block; None for cross entropy against the teacher's softmax."""
