"""``naspipe plan`` with a teacher: its options, and the table of what was simulated."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from naspipe.cli.display.simulated_plans import WIDTH, refuse_unused, show
from naspipe.cli.flags import given
from naspipe.cli.teaching.teacher import teacher_of, with_momentum
from naspipe.config.definition import Execution, Settings, apply_settings

if TYPE_CHECKING:
    from naspipe.frontend.simulation.taught_plans import TaughtPlan
    from naspipe.runtime.jobs.workload import Workload

_COLUMNS = (
    "passes", "views", "stages", "cuts", "r", "fills from", "full", "order", "passes/s", "bubble",
    "teachers",
)  # fmt: skip


def show_taught(
    arguments: argparse.Namespace, kinds: Sequence[str], devices: Sequence[int]
) -> None:
    """Simulate every choice and print them, the fastest first; arguments as below."""
    show(plan_taught(arguments, kinds, devices), arguments.json, print_taught)


def plan_taught(
    arguments: argparse.Namespace, kinds: Sequence[str], devices: Sequence[int]
) -> list[TaughtPlan]:
    """Simulate every choice for a student and its teacher, the fastest first.

    Args:
        arguments: of the command line.
        kinds: of steps; the recipe's where there are none.
        devices: numbers of stages.

    Raises:
        ConfigError: for whatever cannot be used.
    """
    from naspipe.frontend.given.workloads import find_workload
    from naspipe.frontend.simulation.taught_plans import for_passes, taught_plans, with_passes

    refuse_unused(arguments, "a teacher")
    how = Execution(**given(Execution, arguments))
    asked = with_momentum(
        apply_settings(Settings(execution=how), arguments.set), arguments.momentum
    )

    def found(batches: int | None = None) -> Workload:
        sizes = {**asked.data, **({"batches": batches} if batches else {})}
        named = find_workload(
            arguments.space, arguments.scale, arguments.data, arguments.data_dir, sizes
        )
        settings = apply_settings(Settings(recipe=named.recipe), arguments.set)
        return named.redefined(settings.rules, recipe=settings.recipe)

    def define(passes: str) -> Workload:
        fitting = for_passes(found(), passes, found)
        return with_passes(fitting, passes, arguments.steps, arguments.seed)

    def make():  # type: ignore[no-untyped-def]
        return teacher_of(arguments, asked.momentum)

    kinds = kinds or [found().recipe.passes]
    return taught_plans(define, make, kinds, devices, asked.execution)


def print_taught(plans: Sequence[TaughtPlan]) -> None:
    """A table, the fastest first, and what ``full`` means."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in _COLUMNS:
        justify: Literal["left", "right"] = "left" if name in ("passes", "cuts") else "right"
        table.add_column(name, justify=justify, no_wrap=True)
    for plan in plans:
        needed = "never" if plan.filled_from is None else str(plan.filled_from)
        table.add_row(
            plan.passes, str(plan.views), str(plan.stages), plan.cuts, f"{plan.ratio:.2f}",
            needed, "yes" if plan.is_filled else "no", plan.order,
            f"{plan.passes_per_second:.3f}", f"{plan.bubble_ratio:.3f}",
            "-" if plan.teachers is None else str(plan.teachers),
        )  # fmt: skip
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = WIDTH
    console.print(table)
    console.print(
        "r: the teacher's forward over the student's; fills from: the passes of a step (views "
        "times micro-batches) from which on r * passes >= 3 * (stages - 1), so that a teacher "
        "that is ahead fills the pipeline"
    )
    if any(plan.teachers for plan in plans):
        console.print(
            "teachers: with devices of their own, that make labels as fast as the student takes "
            "them if it is alone on its stages"
        )
