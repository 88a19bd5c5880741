"""``naspipe plan`` with a teacher: the options that it has, what is simulated, and the tables.

A student may have a whole network as its teacher, or follow the student itself. A named student
has a teacher for each of its blocks, and the plan says where the blocks could be.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Literal, TypeVar

from naspipe.cli.options import given
from naspipe.cli.teacher import teacher_of, with_momentum
from naspipe.config.definition import Execution, Settings, apply_settings

if TYPE_CHECKING:
    from naspipe.api.teacher_plans import BlockwisePlan, TaughtPlan
    from naspipe.distill.taught import Taught
    from naspipe.jobs.workload import Workload


# What both plans have in common


Plan = TypeVar("Plan", "BlockwisePlan", "TaughtPlan")

WIDTH = 120
"""Columns of a table in a file or a pipe."""

_UNUSED = {
    "samplers": "", "partitions": "", "streams": "1", "budget": "none", "costs": "profiled",
    "no_shared": False,
}  # fmt: skip
"""Options and their defaults."""


def refuse_unused(arguments: argparse.Namespace, beside: str, *without: str) -> None:
    """Options that say nothing here must not be given; ``without`` names others.

    Raises:
        ConfigError: naming the first that is.
    """
    from naspipe.config.errors import ConfigError

    for name, usual in (_UNUSED | dict.fromkeys(without)).items():
        if getattr(arguments, name) != usual:
            option = f"--{name.replace('_', '-')}"
            raise ConfigError(f"{option}: expected nothing beside {beside}; leave it out")


def show(
    plans: Sequence[Plan], as_json: bool, print_table: Callable[[Sequence[Plan]], None]
) -> None:
    """As JSON or as a table."""
    if as_json:
        print(json.dumps([plan.as_dict() for plan in plans], indent=1))
    else:
        print_table(plans)


# A student and its teacher


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
    from naspipe.api.teacher_plans import for_passes, taught_plans, with_passes
    from naspipe.inputs.named import find_workload

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


# Student blocks and their teachers


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
    from naspipe.api.distill import blockwise_streams
    from naspipe.api.teacher_plans import blockwise_plans
    from naspipe.cli.distill_sources import find, read_asked
    from naspipe.config.errors import ConfigError

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
            found.teachers,
            found.students.blocks,
            found.data,
            seed=asked.seed,
            steps=steps,
            sampler=asked.sampler,
            loss=found.students.loss,
            last_loss=found.students.last_loss,
            recipe=values,
        )

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
