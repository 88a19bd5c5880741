"""Held-out data, on which the subnets of a run are evaluated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import search_spaces
from naspipe.config.errors import ConfigError
from naspipe.config.execution import Execution
from naspipe.inputs.named import find_data, is_own_data
from naspipe.jobs.workload import Batches

BATCHES = 8
"""Default number of batches, if that many are available."""

_OWN = "a function of (seed, number) that returns batches the run was not trained on"


def find_held_out(
    space: str,
    scale: str,
    data: str,
    *,
    root: Path | None = None,
    split: str = "valid",
    own: str | None = None,
    sizes: Mapping[str, int] | None = None,
) -> Batches:
    """Return the held-out batches that belong to a run's data.

    Args:
        space: the space of the run, by name or as ``module:attribute``.
        scale: of the space.
        data: the data of the run, by name or as ``module:function``.
        root: directory of prepared data.
        split: of a data set by name.
        own: ``module:function``, which replaces those of the run's data.
        sizes: ``max_tokens`` or ``batch_size``, if different from the space's.
    """
    if own is not None:
        return find_data(own, root, {})
    if is_own_data(data):
        return held_out_of(find_data(data, root, {}))
    usual: dict[str, int | None] = {}
    if ":" not in space:
        defaults = search_spaces.defaults(space, scale)
        usual = {"max_tokens": defaults.max_tokens, "batch_size": defaults.batch_size}
    return find_data(data, root, {**usual, **(sizes or {})}, split)


def held_out_for(
    execution: Execution, source: Mapping[str, Any], root: Path | None
) -> Batches | None:
    """Return the held-out batches of a run that is validated; otherwise None.

    Args:
        execution: determines whether the run is validated.
        source: names of the run's space and data on the command line.
        root: directory of prepared data.
    """
    if not execution.validation.every_steps:
        return None
    space, scale = source["space"], source["scale"]
    data = source["data"]
    if data is None and source["validation"] is None:
        data = search_spaces.defaults(space, scale).data
    sizes, own = source.get("sizes"), source["validation"]
    return find_held_out(space, scale, data or "", root=root, own=own, sizes=sizes)


def held_out_of(data: Batches) -> Batches:
    """Return the held-out batches of a user's own data: their attribute ``validation``."""
    validation: Callable[..., Any] | None = getattr(data, "validation", None)
    if not callable(validation):
        raise ConfigError(
            f"held-out data: expected {_OWN}, found none; give --validation MODULE:FUNCTION, or "
            f"your data an attribute validation"
        )
    return validation


def judged_by(data: Batches, held_out: Batches | None, count: int | None) -> tuple[Batches, int]:
    """Return the batches to evaluate subnets on, and their number.

    Args:
        data: the training data of a run, whose attribute ``validation`` is the default.
        held_out: batches to evaluate on.
        count: number of batches; None for 8, or all if there are fewer; 0 for all.
    """
    chosen = held_out_of(data) if held_out is None else held_out
    there = batches_there(chosen, BATCHES if count is None else count)
    if count is not None and count > there:
        raise ConfigError(
            f"validate: expected at most {there}, the held-out batches there are, found {count}"
        )
    return chosen, there


def batches_there(held_out: Batches, count: int) -> int:
    """Return ``count``, or the number of different batches if the data state fewer; 0 for all."""
    there: int | None = getattr(held_out, "batches_per_epoch", None)
    if there is None and not count:
        raise ConfigError(
            "validate: expected a number of held-out batches, as these data do not say how many "
            "there are (batches_per_epoch), found 0, which is all of them"
        )
    return min(count or int(there or 0), int(there or count))


def part_of(held_out: Batches, count: int) -> str:
    """Return text such as ``8 of 38 held-out batches``, without the total if unknown."""
    there = getattr(held_out, "batches_per_epoch", count)
    part = f"{count} of {there}" if there > count else str(count)
    return f"{part} held-out batch{'es' * (there > 1)}"
