"""``naspipe plan`` with a teacher: its options, the simulations, and the tables.

The teacher of a student is a whole network, or follows the student itself. A named student has a
teacher for each of its blocks; the plan then compares placements of the blocks.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from naspipe.cli.options import given
from naspipe.cli.output import print_table
from naspipe.cli.teacher import teacher_of, with_momentum
from naspipe.config.definition import Settings, apply_settings
from naspipe.config.errors import ConfigError
from naspipe.config.execution import Execution

if TYPE_CHECKING:
    from naspipe.distill.distillation import Distillation
    from naspipe.jobs.workload import Workload


_UNUSED = {
    "samplers": "", "partitions": "", "streams": "1", "budget": "none", "costs": "profiled",
    "no_shared": False,
}  # fmt: skip
"""Options without effect, and their defaults."""


def refuse_unused(arguments: argparse.Namespace, beside: str, *without: str) -> None:
    """Reject options that have no effect with ``beside``; ``without`` names others."""
    for name, usual in (_UNUSED | dict.fromkeys(without)).items():
        if getattr(arguments, name) != usual:
            option = f"--{name.replace('_', '-')}"
            raise ConfigError(f"{option}: expected nothing beside {beside}; leave it out")


# A student and its teacher


_COLUMNS = (
    "passes", "views", "stages", "cuts", "r", "fills from", "full", "order", "passes/s", "bubble",
    "teachers",
)  # fmt: skip


def show_taught(
    arguments: argparse.Namespace, kinds: Sequence[str], devices: Sequence[int]
) -> None:
    """Simulate every choice for a student and its teacher, and print them, the fastest first.

    ``kinds`` are kinds of steps; by default the recipe's. ``devices`` are numbers of stages.
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

    kinds = kinds or [found().recipe.passes]
    plans = taught_plans(
        define, lambda: teacher_of(arguments, asked.momentum), kinds, devices, asked.execution
    )
    if arguments.json:
        print(json.dumps([asdict(plan) for plan in plans], indent=1))
        return
    rows = [
        (
            plan.passes,
            str(plan.views),
            str(plan.stages),
            plan.cuts,
            f"{plan.ratio:.2f}",
            "never" if plan.filled_from is None else str(plan.filled_from),
            "yes" if plan.is_filled else "no",
            plan.order,
            f"{plan.passes_per_second:.3f}",
            f"{plan.bubble_ratio:.3f}",
            "-" if plan.teachers is None else str(plan.teachers),
        )
        for plan in plans
    ]
    console = print_table(_COLUMNS, rows, left=("passes", "cuts"))
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
    import search_spaces

    return name in search_spaces.student_names()


def show_blocks(
    arguments: argparse.Namespace, kinds: Sequence[str], devices: Sequence[int]
) -> None:
    """Simulate every placement of blocks and print them, the fastest first.

    The arguments are those of :func:`show_taught`.
    """
    from naspipe.api.teacher_plans import blockwise_plans
    from naspipe.cli.distill_sources import find, read_asked

    if not arguments.teacher:
        raise ConfigError(
            f"{arguments.space}: expected --teacher RUN, whose blocks teach it, found none"
        )
    refuse_unused(arguments, "blocks with teachers", "momentum")
    nothing = dict.fromkeys(("network", "cuts", "recipe", "sampler", "run_dir"))
    words = {**vars(arguments), "student": arguments.space, **nothing}
    asked = read_asked(argparse.Namespace(**words))
    found = find(asked.source, arguments.data_dir)

    def define(passes: str) -> Distillation:
        recipe = replace(asked.recipe, passes=passes)
        steps = max(1, asked.steps // recipe.steps.passes)
        made = replace(asked, recipe=recipe, steps=steps, execution={})
        return made.streams(found)

    how = Execution(**given(Execution, arguments))
    plans = blockwise_plans(define, kinds or [asked.recipe.passes], devices, how)
    if arguments.json:
        print(json.dumps([asdict(plan) for plan in plans], indent=1))
        return
    heads = ("passes", "stages", "placement", "steps/s", "bubble", "moved", "memory", "blocks")
    rows = [
        (
            plan.passes,
            str(plan.stages),
            plan.placement,
            f"{plan.steps_per_second:.2f}",
            f"{plan.bubble_ratio:.3f}",
            f"{plan.moved_bytes / 1e6:.2f} MB",
            f"{plan.memory_bytes / 1e6:.1f} MB",
            " | ".join(plan.blocks),
        )
        for plan in plans
    ]
    print_table(heads, rows, left=("blocks",), fold=("blocks",)).print(
        "T0 is the teacher's first block, S0 its student; | stands between stages; * where only "
        "some layers are there, /n where n stages share the passes; moved: in a step"
    )
