"""How many subnets may be under way at a time."""

from __future__ import annotations

from naspipe.config.definition import Execution, parse_bytes
from naspipe.config.errors import ConfigError
from naspipe.config.steps import Steps

WIDEST = 16
"""Sequence IDs, unless the user says otherwise."""
MORE_THAN_STAGES = 4
"""With a memory budget, so many steps more than there are stages. Subnets beyond that hardly fill a
bubble, but each takes room from those before it. Simulated without what copies take, ``nlp.c1``,
``nlp.c2``, ``cv.c1`` and ``cv.c3`` on 2, 4 and 8 stages, ``uniform`` and ``spaced:8``: at most 1 %
slower than with 16. ``nlp.c2`` with memory for 1.5 subnets on 2 stages: 8 % fewer loads."""


def plan_window(execution: Execution, steps: Steps, kept_bytes: int) -> int:
    """The window of a stream's admission.

    Args:
        execution: the user's window, budgets and stages.
        steps: how passes form steps.
        kept_bytes: what one subnet of each stream keeps on one stage, at most.

    Raises:
        ConfigError: when one step alone does not fit ``activation_memory``.
    """
    window = execution.pipeline.window or WIDEST
    if not execution.pipeline.window and execution.memory.budget:
        window = min(WIDEST, (execution.pipeline.stages + MORE_THAN_STAGES) * steps.trained)
    if not execution.memory.activations:
        return window
    limit_bytes, passes = parse_bytes(execution.memory.activations), steps.trained
    if kept_bytes * passes > limit_bytes:
        whose = "one subnet keeps" if passes == 1 else f"the {passes} passes of a step keep"
        raise ConfigError(
            f"activation_memory: expected at least {kept_bytes * passes} bytes, which {whose} on "
            f"one stage, found {limit_bytes}; use --recompute, more stages or a smaller batch"
        )
    return min(window, limit_bytes // max(1, kept_bytes))
