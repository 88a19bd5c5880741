"""What plans with teachers have in common: unused options, and how they are shown."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from naspipe.frontend.simulation.blockwise_plans import BlockwisePlan
    from naspipe.frontend.simulation.taught_plans import TaughtPlan

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
