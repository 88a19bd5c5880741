"""Plan the validation of a run: its held-out batches and a few fixed subnets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from zlib import crc32

from naspipe.config.errors import ConfigError
from naspipe.config.execution import Execution
from naspipe.config.space import Space
from naspipe.config.user_code import users_code
from naspipe.data.views import Views
from naspipe.inputs.held_out import batches_there, held_out_of, part_of
from naspipe.jobs.batches_apart import batch_apart
from naspipe.jobs.losses import is_joined, needs_teacher
from naspipe.jobs.workload import EvaluationRecipe, FeatureProbe, Workload, field_of
from naspipe.search.strategies import RandomSearch
from naspipe.streams.stream_file import read_stream
from naspipe.worker.job import ValidationPlan

PROJECTOR = "projector"
"""The block before which features are taken by default."""


def plan_validation(workload: Workload, execution: Execution) -> ValidationPlan | None:
    """Return the validation plan of a stream; None if it is not validated.

    Raises:
        ConfigError: if there are no held-out batches, or a file of subnets does not fit the space.
    """
    if not execution.validation.every_steps or not workload.is_trained:
        return None
    held_out = workload.held_out or held_out_of(workload.data)
    recipe = workload.definition.recipe
    if execution.validation.ema and not recipe.ema:
        raise ConfigError(
            "validate_ema: expected a recipe that keeps moving averages, found one without; "
            "train with --set ema=0.999"
        )
    probe, judged = _probe(workload, execution)
    evaluation = EvaluationRecipe(
        workload=judged,
        held_out=held_out,
        calibration=execution.validation.calibration_batches,
        validation=batches_there(held_out, execution.validation.batches),
        ema=execution.validation.ema,
        probe=probe,
    )
    seed = workload.definition.seed
    return ValidationPlan(
        evaluation=evaluation, choices=_choices(execution.validation.subnets, judged.space, seed)
    )


def _probe(workload: Workload, execution: Execution) -> tuple[FeatureProbe | None, Workload]:
    """Return the probe of features, if any, and the part of the network that is judged."""
    settings, space = execution.validation, workload.space
    if settings.probe == "none":
        if needs_teacher(workload.loss) or is_joined(workload.loss):
            raise ConfigError(
                f"validate_every: expected --set validate_probe=knn or ridge with the loss "
                f"{type(workload.loss).__name__}, which has no form without a teacher, found none"
            )
        return None, workload
    labels = space.labels
    if settings.features and settings.features not in labels:
        raise ConfigError(
            f"validate_features={settings.features:.80}: expected a block of {space.name}, such as "
            f"{labels[0]!r}, found none of that label"
        )
    last = len(labels) - 1 - workload.has_loss_layer
    before = labels.index(PROJECTOR) if PROJECTOR in labels else last
    end = labels.index(settings.features) + 1 if settings.features else max(1, before)
    if any(block.num_options > 1 for block in space.blocks[end:]):
        raise ConfigError(
            f"validate_probe: expected a choice for every choice block, found {space.name} cut "
            f"behind {labels[end - 1]!r}; name a later block as validate_features"
        )
    cut = Space(space.name, space.blocks[:end])
    data = workload.data.plain if isinstance(workload.data, Views) else workload.data
    probe = FeatureProbe(settings.probe, data, batches_there(data, settings.probe_batches))
    return probe, replace(workload, space=cut, data=data)


def _choices(text: str, space: Space, seed: int) -> tuple[tuple[int, ...], ...]:
    """Return the subnets of a setting; a number of them is drawn independently of the stream."""
    if text.startswith("file:"):
        choices_of = space.decisions.choices_of if space.decisions else None
        path = Path(text.removeprefix("file:"))
        return tuple(read_stream(path, space.candidate_counts, choices_of))
    decisions = space.decisions
    counts = decisions.counts if decisions else space.candidate_counts
    draws = RandomSearch(counts, crc32(f"validation {seed}".encode()))
    drawn = [draws.draw() for _ in range(int(text))]
    return tuple(decisions.choices(each) if decisions else each for each in drawn)


def check_validation(workload: Workload, execution: Execution) -> str:
    """Check that the first held-out batch has every field that the space and the loss need.

    Return a note if held-out data were given and some are not used; otherwise an empty string.

    Raises:
        ConfigError: if a field is missing, or the data raise an error.
    """
    validation = plan_validation(workload, execution)
    if validation is None:
        is_idle = workload.held_out is not None and workload.is_trained
        unused = "no held-out batch is looked at: --set validate_every=100 does every 100 steps"
        return unused if is_idle else ""
    evaluation = validation.evaluation
    seed, space = evaluation.workload.definition.seed, evaluation.workload.space
    with users_code(f"held-out data: expected a batch from held_out({seed}, 0), found"):
        batch = batch_apart(evaluation.held_out, seed, 0)
    if not isinstance(batch, Mapping):
        raise ConfigError(
            f"held-out data: expected a dict of tensors by name from held_out({seed}, 0), found "
            f"{type(batch).__name__}"
        )
    for block in range(len(space)):
        for name in space.fields(block):
            field_of(batch, name, 0)
    for name in ("target",) if evaluation.probe else evaluation.workload.judged_fields:
        field_of(batch, name, 0)
    part = part_of(evaluation.held_out, evaluation.validation)
    takes_all = "--set validate_batches=0 takes all"
    return f"subnets are judged on the first {part}; {takes_all}" if " of " in part else ""


def describe(validation: ValidationPlan | None) -> dict[str, Any]:
    """Return the manifest's entries on the validation, in addition to the settings."""
    if validation is None:
        return {}
    record = getattr(validation.evaluation.held_out, "record", None)
    return {
        "subnets": [list(each) for each in validation.choices],
        "batches": validation.evaluation.validation,
        "data": dict(record or {"name": "the user's own"}),
    }
