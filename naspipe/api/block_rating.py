"""``naspipe.rate_blocks``: rate the paths of each student block against its teacher's block.

The rating of a block is a search of the block's run. Its data are the batches together with the
outputs of the frozen teacher: the inputs of the block, and the output it should produce.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from naspipe.api.distill import Blockwise, Keyed
from naspipe.api.search import judge_subnets
from naspipe.api.search_parts import ALL
from naspipe.api.search_record import SearchObserver, SilentSearchObserver
from naspipe.config.errors import ConfigError
from naspipe.config.execution import Execution
from naspipe.config.recipe import Recipe
from naspipe.config.space import Space
from naspipe.distill.blockwise import through
from naspipe.inputs.held_out import judged_by
from naspipe.inputs.run import Run, loss_layer_of
from naspipe.jobs.losses import Loss, distilled_fields, distilling
from naspipe.jobs.workload import Batches, define
from naspipe.machine.determinism import kept_draws
from naspipe.search.combination import Combination, RatedPath, combine
from naspipe.search.scores import merit
from naspipe.search.search_directory import PREFIX, Search, SearchDefinition, search_path
from naspipe.search.strategies import COSTS

AT_MOST = 2000
"""All paths of a block are rated up to this number; if it has more, this many are drawn."""

OWN = "loss"
"""The measure that stands for the block's own loss."""


def l1_distance(output: torch.Tensor, taught: torch.Tensor) -> torch.Tensor:
    """Return the mean of |output - taught| in standard deviations of ``taught`` (DNA, CVPR'20)."""
    return (output - taught).abs().mean() / taught.std()


def l2_distance(output: torch.Tensor, taught: torch.Tensor) -> torch.Tensor:
    """Return the mean squared difference divided by the variance of ``taught``."""
    return (output - taught).square().mean() / taught.var()


MEASURES: Mapping[str, Loss] = {"l1": l1_distance, "l2": l2_distance}
"""Measures by name; in addition, ``loss`` stands for the block's own."""


def rate_blocks(
    found: Blockwise,
    held_out: Batches | None = None,
    *,
    measure: str | Loss = "l1",
    last_measure: str | Loss = OWN,
    calibrate: int = 4,
    validate: int | None = None,
    at_most: int = AT_MOST,
    strategy: str = "random",
    options: Mapping[str, float] | None = None,
    seed: int = 0,
    stages: int = 1,
    name: str = "",
    execution: Mapping[str, Any] | None = None,
    observer: SearchObserver | None = None,
) -> tuple[Search, ...]:
    """Rate the paths of every student block on held-out batches; lower is better.

    Running statistics are recomputed for each path. Ratings are searches of the blocks' runs, and
    bitwise equal on any number of stages: ``.ranked()`` has choices, scores and costs.

    Args:
        found: the result of :func:`naspipe.distill_blockwise` or :meth:`naspipe.Blockwise.of`.
        held_out: ``held_out(seed, number)``; ``data.validation`` by default.
        measure: ``l1`` (mean of the difference in standard deviations, as in DNA), ``l2`` (mean
            square in variances), ``loss`` (the block's own), or a function (output, taught) -> one
            number.
        last_measure: of the last block; its own loss by default.
        calibrate: number of batches of the data for computing running statistics; 0 for the run's
            own.
        validate: number of batches of ``held_out``; 8, or all if there are fewer; 0 for all.
        at_most: paths of a block; if a block has more, ``strategy`` proposes this number of them.
        strategy, options, seed: as for :func:`naspipe.search_subnets`.
        stages: stage processes; a block with fewer layers is rated on that number of stages.
        name: of the ratings; the next number by default. ``execution`` and ``observer`` as for
            :func:`naspipe.search_subnets`.

    Raises:
        ConfigError: if the input cannot be used.
        StageFailedError: if a layer, the data or a measure raises an error in any stage.
    """
    chosen, count = judged_by(found.data, held_out, validate)
    definition = SearchDefinition(
        strategy=strategy,
        options=dict(options or {}),
        budget=at_most,
        seed=seed,
        calibration=calibrate,
        validation=count,
    )
    how = Execution(stages=stages, **(execution or {}))
    measures = [*[measure] * (len(found.blocks) - 1), last_measure]
    judges = [_judge(number, each, found) for number, each in enumerate(measures)]
    named = _free_name(found, name)
    return tuple(
        judge_subnets(
            Run(_asking(run.space, Lessons(found, number, found.data)), run.directory.path),
            Lessons(found, number, found.data),
            Lessons(found, number, chosen),
            judge.loss,
            _of_block(run.space, replace(definition, loss=judge.name)),
            how.changed(stages=min(stages, len(run.space))),
            name=named,
            observer=observer or SilentSearchObserver(),
        )
        for number, (run, judge) in enumerate(zip(found.blocks, judges, strict=True))
    )


def _of_block(space: Space, definition: SearchDefinition) -> SearchDefinition:
    """Use all paths, unless there are more than the budget."""
    count = math.prod(space.drawn_counts)
    if count > definition.budget:
        return definition
    return replace(definition, strategy=ALL, options={}, budget=count)


def combine_blocks(
    ratings: Sequence[Search], limits: Mapping[str, float] | None = None
) -> Combination:
    """Find the path of each block with the least sum of scores within the limits, exactly.

    Args:
        ratings: of each block, as returned by :func:`rate_blocks`.
        limits: ``flops`` (of one sample), ``params``, ``latency_ms``; they apply to sums of costs.

    Raises:
        ConfigError: for an unknown limit, or if no combination is within the limits; the error
            names the cheapest.
    """
    for name in sorted(set(limits or {}) - set(COSTS)):
        raise ConfigError(f"limits: expected {', '.join(COSTS)}, found {name!r:.80}")
    blocks = [
        [
            RatedPath(each.choices, -merit(each.scores, rating.score), each.cost._asdict())
            for each in rating.ranked()
        ]
        for rating in ratings
    ]
    return combine(blocks, limits)


class Lessons:
    """The batches of a student block, with its inputs, and the teacher's output as ``target``.

    If the teacher's block returns several tensors, the target is the first one. The teacher runs on
    the CPU with the precision of the run. ``data`` is called with the seed of the distillation.
    """

    def __init__(self, found: Blockwise, number: int, data: Batches) -> None:
        self._data = Keyed(data, found.seed)
        self.record, self.info = self._data.record, self._data.info
        self._before, self._block = found.teachers[:number], found.teachers[number]
        recipe = found.blocks[number].manifest["definition"]["recipe"]
        self._is_bf16 = recipe["precision"] == "bf16"

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the fields that the block is called with, in addition to its own."""
        return tuple(name for name in self(0, 0) if name.startswith(_TAUGHT))

    def __call__(self, seed: int, number: int) -> dict[str, Any]:
        """Return a batch. Its tensors share no memory, even if the teacher works in place."""
        batch = {**self._data(seed, number)}
        casts = torch.autocast("cpu", dtype=torch.bfloat16, enabled=self._is_bf16)
        with kept_draws(), torch.no_grad(), casts:
            inputs = through(self._before, {"input": batch["input"].clone()})
            lesson = self._block(*(each.clone() for each in inputs))
        if self._before:
            batch.update({f"{_TAUGHT}{place}": each for place, each in enumerate(inputs)})
        return {**batch, "target": lesson[0] if isinstance(lesson, tuple) else lesson}


_TAUGHT = "taught."
"""Prefix of the names of fields that the teacher computes."""


class _Judge(NamedTuple):
    loss: Loss
    """Called with an output and the teacher's output."""
    name: str


def _judge(number: int, measure: str | Loss, found: Blockwise) -> _Judge:
    if measure == OWN:
        own = found.losses[number]
        if loss_layer_of(found.blocks[number].manifest) is not None:
            raise ConfigError(
                f"measure {OWN}: expected a loss of block {number} without parameters and buffers, "
                f"found {type(own).__name__}, which the distillation has trained; choose "
                f"{' or '.join(MEASURES)}"
            )
        name = str(found.blocks[number].manifest["definition"]["loss"])
        distilled, fields = distilling(own), distilled_fields(own)
        if fields:
            raise ConfigError(
                f"measure {OWN}: expected a loss of block {number} that compares with the teacher "
                f"alone, found {type(own).__name__}, which needs {' and '.join(fields)}; choose "
                f"{' or '.join(MEASURES)}"
            )
        return _Judge(distilled, name)
    judge = MEASURES.get(measure) if isinstance(measure, str) else measure
    if not callable(judge):
        raise ConfigError(
            f"measure: expected {', '.join(MEASURES)}, {OWN} or a function, found {measure!r:.80}"
        )
    space = found.blocks[number].space
    name = define(space, found.data, judge, recipe=Recipe(), steps=1).loss
    return _Judge(lambda *given: judge(given[0], given[-1]), name)  # of the first tensor


def _asking(space: Space, lessons: Lessons) -> Space:
    """Return a space with the same layers, the first of which takes the fields of ``lessons``."""
    for position in range(len(space)):
        if "target" in space.fields(position):
            raise ConfigError(
                f"rate_blocks: expected no layer that is called with the batch field target, which "
                f"holds the teacher's output in a rating, found layer {space.label(position, 0)} "
                f"of {space.name}; give the field another name in the data"
            )
    fields = lessons.fields
    if not fields:
        return space
    first, *others = space.blocks
    return Space(
        space.name,
        [replace(first, fields=(*fields, *first.fields)), *others],
        space.decisions,
    )


def _free_name(found: Blockwise, name: str) -> str:
    """Return a name that no search of any block has."""
    paths = [run.directory.path for run in found.blocks]
    if not name:
        taken = {each.name for path in paths for each in path.glob(f"{PREFIX}*")}
        return next(str(n) for n in itertools.count(1) if f"{PREFIX}{n}" not in taken)
    for path in paths:
        if search_path(path, name).exists():
            raise ConfigError(f"{path}: there is a rating {name!r} already; choose another name")
    return name
