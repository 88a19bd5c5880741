"""What a run is validated by while it goes on: held-out batches, and a fixed few subnets."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zlib import crc32

from naspipe.core.config import Execution
from naspipe.core.errors import ConfigError
from naspipe.core.space import Space
from naspipe.core.user_code import users_code
from naspipe.frontend.held_out import at_most, held_out_of
from naspipe.runtime.compute import Workload, field_of
from naspipe.runtime.exam import Exam
from naspipe.runtime.job import Judging
from naspipe.search.random_search import RandomSearch
from naspipe.streams.from_file import read_stream


def make_judging(workload: Workload, execution: Execution) -> Judging | None:
    """How a stream is validated; None where it is not.

    Raises:
        ConfigError: when there are no held-out batches, or a file of subnets does not fit the
            space.
    """
    if not execution.validate_every:
        return None
    held_out = workload.held_out or held_out_of(workload.data)
    recipe = workload.definition.recipe
    if execution.validate_ema and not recipe.ema:
        raise ConfigError(
            "validate_ema: expected a recipe that keeps moving averages, found one without; "
            "train with --set ema=0.999"
        )
    exam = Exam(
        workload=workload,
        held_out=held_out,
        calibration=execution.validate_calibrate,
        validation=at_most(held_out, execution.validate_batches),
        ema=execution.validate_ema,
    )
    seed = workload.definition.seed
    return Judging(exam=exam, choices=_choices(execution.validate_subnets, workload.space, seed))


def _choices(text: str, space: Space, seed: int) -> tuple[tuple[int, ...], ...]:
    """The subnets that a setting names; those of a number are drawn apart from the stream."""
    if text.startswith("file:"):
        return tuple(read_stream(Path(text.removeprefix("file:")), space.candidate_counts))
    decisions = space.decisions
    counts = decisions.counts if decisions else space.candidate_counts
    draws = RandomSearch(counts, crc32(f"validation {seed}".encode()))
    drawn = [draws.draw() for _ in range(int(text))]
    return tuple(decisions.choices(each) if decisions else each for each in drawn)


def check_judging(judging: Judging) -> None:
    """The first held-out batch must hold every field that the space names, and the target.

    Raises:
        ConfigError: when it does not, or the data raise.
    """
    exam = judging.exam
    seed, space = exam.workload.definition.seed, exam.workload.space
    with users_code(f"held-out data: expected a batch from held_out({seed}, 0), found"):
        batch = exam.held_out(seed, 0)
    if not isinstance(batch, Mapping):
        raise ConfigError(
            f"held-out data: expected a dict of tensors by name from held_out({seed}, 0), found "
            f"{type(batch).__name__}"
        )
    for block in range(len(space)):
        for name in space.fields(block):
            field_of(batch, name, 0)
    field_of(batch, "target", 0)


def describe(judging: Judging | None) -> dict[str, Any]:
    """What the manifest says of it, beside the settings."""
    if judging is None:
        return {}
    record = getattr(judging.exam.held_out, "record", None)
    return {
        "subnets": [list(each) for each in judging.choices],
        "batches": judging.exam.validation,
        "data": dict(record or {"name": "the user's own"}),
    }
