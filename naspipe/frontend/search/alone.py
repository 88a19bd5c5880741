"""A subnet alone, as an ordinary workload: every step takes the same subnet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from naspipe.core.config import Recipe
from naspipe.core.steps import NO_PROBES
from naspipe.frontend.given.run import Run
from naspipe.runtime.jobs.losses import Loss
from naspipe.runtime.jobs.workload import Batches, Workload
from naspipe.streams.from_file import write_stream


def workload_alone(
    run: Run,
    choices: Sequence[int],
    data: Batches,
    loss: Loss,
    *,
    steps: int,
    stream: Path,
    seed: int | None = None,
) -> Workload:
    """A subnet from its first weights, with a run's recipe.

    Steps have one pass where the run's had several: there are no other subnets to learn with.

    Args:
        run: whose subnet.
        choices: one per choice block.
        data, loss: those of the run.
        steps: of the subnet.
        stream: where the subnet is written, for the sampler to read.
        seed: of first weights and batches; the run's by default.

    Raises:
        ConfigError: for what the recipe cannot be with.
    """
    definition = run.manifest["definition"]
    write_stream(stream, [tuple(choices)])
    recipe = Recipe(**definition["recipe"])
    if recipe.steps.distills or recipe.steps.draws_each or recipe.steps.probes:
        recipe = replace(recipe, passes="one", probes=NO_PROBES)
    return Workload.of(
        run.space, data, loss, recipe=recipe, steps=steps, sampler=f"repeat:{stream}",
        seed=definition["seed"] if seed is None else seed, scale=definition["scale"],
        loss_fields=tuple(definition.get("loss_fields", ())),
    )  # fmt: skip
