"""The computation of a run: a space, its data and loss, and the definition that names them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch

from naspipe.config.blocks import LossBlock
from naspipe.config.definition import Definition
from naspipe.config.errors import ConfigError
from naspipe.config.recipe import Recipe
from naspipe.config.rules import MomentumUpdate, Rule
from naspipe.config.space import Space
from naspipe.config.steps import NO_PROBES, Steps, parse_passes, with_probes
from naspipe.config.user_code import full_name
from naspipe.config.wiring import StreamWiring, Tap, Wiring
from naspipe.data.views import Views
from naspipe.jobs.losses import Loss, described, distilled_fields, loss_fields, smoothed, untaught
from naspipe.jobs.ports import Objective, OpenSource
from naspipe.streams.feedback import ExplorationStrategy

Batches = Callable[[int, int], Mapping[str, torch.Tensor]]
"""The data protocol: (seed, sequence ID) -> named tensors, batch dimension first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The computation of a stream: the space, its data and loss, and their definition."""

    space: Space
    data: Batches
    loss: Loss
    definition: Definition
    recompute: bool = False
    make_strategy: Callable[[], ExplorationStrategy] | None = None
    """Creates the strategy that proposes the stream, if any; called in each attempt of a run."""
    held_out: Batches | None = None
    follows: MomentumUpdate | None = None
    """How layers follow those of another stream, if their rules specify this."""
    is_trained: bool = True
    """Whether the stream is trained. Otherwise it only has forwards for streams that tap it; its
    layers are frozen, in evaluation mode, and without autograd.
    """
    tapped: Callable[[Mapping[str, torch.Tensor]], tuple[torch.Tensor, ...]] | None = None
    """Creates the tapped input of the first block from a batch, to measure layers."""
    cut_like: int | None = None
    """The stream whose cuts this stream uses; None for its own."""
    in_training_mode: bool = False
    """Whether modules of a stream that is not trained are in training mode."""
    output_bytes: int = 1
    """Bytes that the last block sends to other streams in a pass, if the placement needs them."""
    left_out: frozenset[int] = frozenset()
    """Passes of a step that no other stream needs, in a stream that is not trained."""
    rank: int = 0
    """Priority of the stream; streams with a lower rank run first."""
    window: int | None = None
    """Maximum number of subnets in flight; None for that of the execution."""
    lingers: bool = True
    """For a stream that is not trained, whether its window starts at the oldest subnet that takes
    its outputs; otherwise the window only counts subnets that have not taken them yet.
    """
    objectives: Mapping[int, Objective] = field(default_factory=dict)
    """Losses that are computed in blocks before the last one, by block."""
    field_sources: Mapping[str, OpenSource] = field(default_factory=dict)
    """Batch fields that arrive later than the others, by name."""
    attendants: tuple[AbstractContextManager[Any], ...] = ()
    """Context managers that are active during the run, such as processes that sources query."""
    is_taught: bool = False
    """Whether a tap delivers a teacher output for every pass, so that the loss always has one."""
    lesson_fields: tuple[str, ...] = ()
    """Batch fields that the loss takes as teacher outputs."""
    labelled_by: tuple[Workload, Tap] | None = None
    """The teacher that computes these fields elsewhere, and the tap that it would have if it were a
    stream of the same pipeline.
    """
    metrics: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    """Metrics of every pass by name, which are called like the loss, but without a teacher."""
    begun: Mapping[str, Any] = field(default_factory=dict)
    """Origin of the initial weights, and their digest, for the manifest."""

    @property
    def is_written(self) -> bool:
        """True if the stream's layers change, so that it has checkpoints."""
        return self.is_trained or self.follows is not None

    @property
    def is_proposed(self) -> bool:
        """True if subnets depend on losses, so that they are not known before the run."""
        return self.make_strategy is not None or self.recipe.probes != NO_PROBES

    @property
    def runs_in_training_mode(self) -> bool:
        follows = self.follows is not None and self.follows.mode == "train"
        return self.is_trained or self.in_training_mode or follows

    @property
    def wiring(self) -> StreamWiring:
        """How the stream differs from a plain training run."""
        needed = [(block, name) for block in range(len(self.space)) for name in self._needs(block)]
        return StreamWiring(
            is_trained=self.is_trained,
            rank=self.rank,
            cut_like=self.cut_like,
            window=self.window,
            lingers=self.lingers,
            objectives=tuple(sorted(self.objectives)),
            late_fields=tuple(each for each in needed if each[1] in self.field_sources),
        )

    def _needs(self, block: int) -> Sequence[str]:
        """The batch fields that a block and its objective need."""
        objective = self.objectives.get(block)
        own = objective.fields if objective else ()
        if block == len(self.space) - 1 and self.is_trained:
            own = (*self.loss_fields, *self.lesson_fields)
        return (*self.space.fields(block), *own)

    @classmethod
    def of(
        cls, space: Space, data: Batches, loss: Loss, *, recipe: Recipe, **identity: Any
    ) -> Workload:
        """Create a workload from its parts; ``identity`` is passed to :func:`define`."""
        definition = define(space, data, loss, recipe=recipe, **identity)
        return cls(space=space, data=data, loss=loss, definition=definition)

    def redefined(self, rules: Mapping[str, Rule] | None = None, **changes: Any) -> Workload:
        """Return a workload with the same space, data and loss and a changed definition.

        Args:
            rules: rules of shared layers that replace those of the space.
            changes: changed fields of the definition.
        """
        space = self.space.with_rules(rules) if rules else self.space
        if "recipe" in changes:
            changes["recipe"] = changes["recipe"].settled(space.drawn_counts)
        definition = replace(self.definition, rules=_texts(space), **changes)
        return replace(self, space=space, definition=definition)

    @property
    def recipe(self) -> Recipe:
        return self.definition.recipe

    @property
    def loss_fields(self) -> tuple[str, ...]:
        """The batch fields passed to the loss: those of the definition, or else of the loss.

        Metrics are called with the same fields, but without a teacher output.
        """
        if self.is_taught and not self.metrics:
            return tuple(self.definition.loss_fields) or distilled_fields(self.loss)
        return self._plain_fields

    @property
    def _plain_fields(self) -> tuple[str, ...]:
        return tuple(self.definition.loss_fields) or loss_fields(self.loss)

    @property
    def target_field(self) -> str:
        """The field over whose values the loss averages: ``target``, or else the first field."""
        given = self.definition.loss_fields
        return "target" if "target" in given or not given else given[0]

    def field(self, batch: Mapping[str, Any], name: str, number: int) -> torch.Tensor:
        """Return a batch field for a layer or the loss, which an error names."""
        try:
            return field_of(batch, name, number)
        except ConfigError as error:
            blocks = range(len(self.space))
            asking = [self.space.labels[b] for b in blocks if name in self.space.fields(b)]
            who = f"block {asking[0]}" if asking else "the loss"
            raise ConfigError(f"{error} ({who} needs it)") from None

    @property
    def judged_fields(self) -> tuple[str, ...]:
        """The batch fields passed to the loss in evaluations of subnets."""
        fields = self._plain_fields
        return fields if self.target_field in fields else ("target",)

    @property
    def has_loss_layer(self) -> bool:
        """True if the last layer is the loss module; see :class:`LossBlock`."""
        return isinstance(self.space.blocks[-1], LossBlock)

    @property
    def objective(self) -> Loss:
        """The user's loss as modified by the recipe."""
        return self._changed(self.loss)

    def objective_of(self, last: Any) -> Loss:
        """Return the same for the module ``last`` of the last layer, if the loss is a layer."""
        return self._changed(last if self.has_loss_layer else self.loss)

    def _changed(self, loss: Loss) -> Loss:
        recipe, data = self.definition.recipe, self.data
        passes = recipe.steps.passes
        lessons = data.lessons if isinstance(data, Views) else passes
        return untaught(
            smoothed(loss, recipe.label_smoothing), passes, lessons,
            fields=len(self.loss_fields), is_taught=self.is_taught,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Common:
    """The settings that all streams of a pipeline share."""

    policy: str
    bulk: int
    """Number of subnets of a bulk; 0 for the number of stages."""
    passes: str
    probes: str
    clip_global_norm: bool
    """Whether the weight updates of a step wait for one another."""
    threads: int

    @property
    def steps(self) -> Steps:
        steps = with_probes(parse_passes(self.passes), self.probes)
        return replace(steps, is_gated=self.clip_global_norm)


def common(workloads: Sequence[Workload]) -> Common:
    """Return the settings of a pipeline; ConfigError if its streams do not agree on them."""
    found: dict[str, Any] = {}
    for each in fields(Common):
        is_of_run = each.name in ("policy", "bulk")
        definitions = [workload.definition for workload in workloads]
        values = {getattr(own if is_of_run else own.recipe, each.name) for own in definitions}
        if each.name == "clip_global_norm":
            values = set(map(bool, values))
        if len(values) > 1:
            said = " and ".join(sorted(map(str, values)))
            raise ConfigError(
                f"{each.name}: expected the same for all streams of a pipeline, found {said}"
            )
        (found[each.name],) = values
    return Common(**found)


def wiring_of(
    workloads: Sequence[Workload], taps: Sequence[Tap] = (), exchanges: Sequence[str] = ()
) -> Wiring:
    """Return the connections of streams, from their workloads, taps and exchanges."""
    streams = tuple(workload.wiring for workload in workloads)
    return Wiring(streams=streams, taps=tuple(taps), exchanges=tuple(exchanges))


def define(
    space: Space, data: Batches, loss: Loss, *, recipe: Recipe, **identity: Any
) -> Definition:
    """Return the definition of a run.

    ``identity`` contains its steps, seed, sampler, scale and policy.
    """
    return Definition(
        space=space.name,
        data=dict(getattr(data, "record", None) or {"name": full_name(data)}),
        loss=described(loss),
        recipe=recipe.settled(space.drawn_counts),
        rules=_texts(space),
        **{"weights": space.weights, **identity},
    )


def _texts(space: Space) -> dict[str, str]:
    return {name: str(rule) for name, rule in space.shared_rules.items()}


def field_of(batch: Mapping[str, Any], name: str, sequence_id: int) -> torch.Tensor:
    """Return a tensor of a batch by its name."""
    value = batch.get(name)
    if isinstance(value, torch.Tensor):
        return value
    found = ", ".join(sorted(batch)) or "an empty batch"
    if name in batch:
        is_array = type(value).__name__ == "ndarray"
        made = f"torch.from_numpy({name})" if is_array else f"torch.tensor({name})"
        found = f"{'a NumPy array' if is_array else type(value).__name__}; return {made}"
    elif name in ("input", "target"):
        found += f"; name it so, as in a collate_fn or transform that returns {{{name!r}: ...}}"
    raise ConfigError(f"batch {sequence_id}: expected a tensor called {name!r}, found {found}")


@dataclass(frozen=True, slots=True)
class FeatureProbe:
    """Evaluates features instead of a loss: fits a classifier, and tests it on other batches.

    The workload's space then ends with the block whose output is used as features.
    """

    kind: str
    """The classifier, ``knn`` or ``ridge``."""
    data: Batches
    """Batches on which the classifier is fitted."""
    batches: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRecipe:
    """The batches of an evaluation and their use; weights are given for each evaluation."""

    workload: Workload
    """The trained workload, whose data are used for calibration."""
    held_out: Batches
    """Batches for the evaluation."""
    calibration: int
    """Number of batches for running statistics; 0 to use the statistics of the training."""
    validation: int
    """Number of batches of ``held_out``."""
    ema: bool = False
    """Whether to use the moving averages of the weights."""
    probe: FeatureProbe | None = None
