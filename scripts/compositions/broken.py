"""Deliberate faults in the runtime, each of which random compositions have to find.

Each fault is a function that patches naspipe in the process of an attempt. The plain loop runs in
another process, so a fault does not reach it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from naspipe.config.rules import Lag
from naspipe.worker.blocks import compute, updates
from naspipe.worker.layers import own_steps, stored_layer


def copies_without_prediction() -> None:
    """Copies for other groups do not say how far a growing lag predicts (once a real fault)."""
    _replace(stored_layer, "READ_STATES", (own_steps.UPDATE,))


def lag_one_step_short() -> None:
    """A reader of a lagging layer sees one update too many."""
    read = Lag.last_read
    _replace(Lag, "last_read", lambda rule, step: min(read(rule, step) + 1, step - 1))


def statistics_folded_twice() -> None:
    """The statistics of each pass are folded into a deferred norm twice."""
    fold = updates.fold

    def twice(module: torch.nn.Module, statistics: Mapping[str, torch.Tensor]) -> None:
        fold(module, statistics)
        fold(module, statistics)

    _replace(updates, "fold", twice)


def teacher_moved_by_hand() -> None:
    """A momentum teacher moves by the same formula, which rounds otherwise than ``lerp_``."""

    @torch.no_grad()
    def follow(layer: Any, source: Any, update: Any, tau: float) -> None:
        for name, parameter in layer.parameters.items():
            parameter.mul_(tau).add_(source.parameters[name], alpha=1.0 - tau)

    _replace(updates, "follow", follow)


def draws_not_keyed_by_pass() -> None:
    """All passes of a step draw the same."""
    seed = compute.block_seed

    def without_pass(run: int, step: int, block: int, _: int, is_teacher: bool = False) -> int:
        return seed(run, step, block, 0, is_teacher)

    _replace(compute, "block_seed", without_pass)


def _replace(where: Any, name: str, value: Any) -> None:
    if not hasattr(where, name):
        raise AttributeError(f"{where.__name__} has no {name} to be broken")
    setattr(where, name, value)


FAULTS: Mapping[str, Callable[[], None]] = {
    each.__name__: each
    for each in (
        copies_without_prediction, lag_one_step_short, statistics_folded_twice,
        teacher_moved_by_hand, draws_not_keyed_by_pass,
    )
}  # fmt: skip
