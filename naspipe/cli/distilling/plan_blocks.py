"""``naspipe plan`` of a named student and its teacher: where their blocks could be."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING

from naspipe.cli.display.simulated_plans import WIDTH, refuse_unused, show
from naspipe.cli.flags import given
from naspipe.config.definition import Execution

if TYPE_CHECKING:
    from naspipe.frontend.simulation.blockwise_plans import BlockwisePlan
    from naspipe.frontend.teaching.taught import Taught


def is_student(name: str) -> bool:
    """Whether a name is that of a student whose blocks have teachers."""
    import search_spaces

    return name in search_spaces.student_names()


def show_blocks(
    arguments: argparse.Namespace, kinds: Sequence[str], devices: Sequence[int]
) -> None:
    """Simulate every placement and print them, the fastest first; arguments as below."""
    show(plan_blocks(arguments, kinds, devices), arguments.json, print_blocks)


def plan_blocks(
    arguments: argparse.Namespace, kinds: Sequence[str], devices: Sequence[int]
) -> list[BlockwisePlan]:
    """Simulate every placement, the fastest first.

    Args:
        arguments: of the command line.
        kinds: of steps; the recipe's where there are none.
        devices: numbers of stages.

    Raises:
        ConfigError: for whatever cannot be used.
    """
    from naspipe.cli.distilling.asked import read_asked
    from naspipe.cli.distilling.found import find
    from naspipe.config.errors import ConfigError
    from naspipe.frontend.simulation.blockwise_plans import blockwise_plans
    from naspipe.frontend.training.distillation import blockwise_streams

    if not arguments.teacher:
        raise ConfigError(
            f"{arguments.space}: expected --teacher RUN, whose blocks teach it, found none"
        )
    refuse_unused(arguments, "blocks with teachers", "momentum")
    nothing = ("network", "cuts", "recipe", "sampler", "run_dir")
    asked = read_asked(
        argparse.Namespace(
            **{**vars(arguments), "student": arguments.space, **dict.fromkeys(nothing)}
        )
    )
    found = find(asked.source, arguments.data_dir)

    def define(passes: str) -> Taught:
        recipe = replace(asked.recipe, passes=passes)
        values = {each.name: getattr(recipe, each.name) for each in fields(recipe)}
        steps = max(1, asked.steps // recipe.steps.passes)
        return blockwise_streams(
            found.teachers, found.students.blocks, found.data, seed=asked.seed, steps=steps,
            sampler=asked.sampler, losses=(found.students.loss, found.students.last_loss),
            recipe=values,
        )  # fmt: skip

    how = Execution(**given(Execution, arguments))
    return blockwise_plans(define, kinds or [asked.recipe.passes], devices, how)


def print_blocks(plans: Sequence[BlockwisePlan]) -> None:
    """A table, the fastest first, and what its letters mean."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in ("passes", "stages", "placement", "steps/s", "bubble", "moved", "memory"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("blocks", overflow="fold")
    for plan in plans:
        table.add_row(
            plan.passes, str(plan.stages), plan.placement, f"{plan.steps_per_second:.2f}",
            f"{plan.bubble_ratio:.3f}", f"{plan.moved_bytes / 1e6:.2f} MB",
            f"{plan.memory_bytes / 1e6:.1f} MB", " | ".join(plan.blocks),
        )  # fmt: skip
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = WIDTH
    console.print(table)
    console.print(
        "T0 is the teacher's first block, S0 its student; | stands between stages; * where only "
        "some layers are there, /n where n stages share the passes; moved: in a step"
    )
