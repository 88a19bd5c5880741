"""What a named student is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from naspipe.config.blocks import Block, Shared

Chains = Callable[[str, str, Mapping[str, int]], Sequence[Sequence[Block | Shared]]]
"""(teacher, scale, what the data state) -> the chain of each student block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudentKind:
    """A student, whoever of its teachers teaches it."""

    teachers: tuple[str, ...]
    """Names of the networks that it can learn from."""
    recipe: str
    """How it is trained unless its user says otherwise: a recipe that comes with naspipe."""
    chains: Chains
    loss: Callable[[], Any] | None = None
    """Makes the loss of every block but the last; None for the mean square of the difference."""
    last_loss: Callable[[], Any] | None = None
    """Makes that of the last one; None for cross entropy against the teacher's softmax."""
