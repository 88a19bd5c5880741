"""A subnet alone, as an ordinary workload: every step takes the same subnet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from naspipe.config.definition import Recipe
from naspipe.config.steps import NO_PROBES
from naspipe.frontend.given.loss_layer import with_loss_layer
from naspipe.frontend.given.run import Run
from naspipe.runtime.jobs.losses import Loss
from naspipe.runtime.jobs.workload import Batches, Workload


def workload_alone(
    run: Run,
    choices: Sequence[int],
    data: Batches,
    loss: Loss,
    *,
    steps: int,
    seed: int | None = None,
    **recipe: Any,
) -> Workload:
    """A subnet from its first weights, with a run's recipe.

    Where each pass of the run's steps had a subnet of its own, or learnt from a larger one, steps
    have one pass; nothing is probed. There are no other subnets to learn with.

    Args:
        run: whose subnet.
        choices: one per choice block.
        data, loss: those of the run.
        steps: of the subnet.
        seed: of first weights and batches; the run's by default.
        recipe: what is otherwise than in the run's recipe.

    Raises:
        ConfigError: for steps that end before the warm-up does, and for what a recipe cannot be.
    """
    definition = run.manifest["definition"]
    own = Recipe(**{**definition["recipe"], **recipe})
    has_others = own.steps.distills or own.steps.draws_each
    own = replace(own, passes="one" if has_others else own.passes, probes=NO_PROBES)
    own.check_warmup(steps)
    only = ",".join(map(str, choices))
    alone = Workload.of(
        run.space, data, loss, recipe=own, steps=steps, sampler=f"only:{only}",
        seed=definition["seed"] if seed is None else seed, scale=definition["scale"],
        loss_fields=tuple(definition.get("loss_fields", ())),
    )  # fmt: skip
    return with_loss_layer(alone)
