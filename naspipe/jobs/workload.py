"""What is computed in a run: a space, its data, its loss, and the definition that names them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch

from naspipe.config.blocks import LossBlock
from naspipe.config.definition import Definition, Recipe
from naspipe.config.errors import ConfigError
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
"""The whole data protocol: (seed, sequence ID) -> named tensors, batch dimension first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is computed: the space, its data and loss, and the definition that names them."""

    space: Space
    data: Batches
    loss: Loss
    definition: Definition
    recompute: bool = False
    make_strategy: Callable[[], ExplorationStrategy] | None = None
    """Makes the strategy that proposes the stream, where one does; anew for each life of a run."""
    held_out: Batches | None = None
    """Batches that nothing is trained on, where the run is validated on the way."""
    follows: MomentumUpdate | None = None
    """How layers follow those of another stream, where their rules say so."""
    is_trained: bool = True
    """Otherwise the stream is only run forward, for others that tap it: its layers are frozen, in
    evaluation mode, and nothing is recorded for autograd."""
    tapped: Callable[[Mapping[str, torch.Tensor]], tuple[torch.Tensor, ...]] | None = None
    """What a tap brings to the first block, made from a batch, for whoever measures layers."""
    cut_like: int | None = None
    """The stream whose cuts it has; None for its own."""
    in_training_mode: bool = False
    """Whether modules of a stream that is not trained run as in training."""
    output_bytes: int = 1
    """What its last block hands to other streams in a pass, where its placement depends on it."""
    left_out: frozenset[int] = frozenset()
    """Passes of a step that nobody needs, of a stream that is not trained."""
    rank: int = 0
    """Streams of a lower rank go first."""
    window: int | None = None
    """Subnets under way; None for the execution's."""
    lingers: bool = True
    """Where it is not trained: whether its window counts from the oldest of those that take its
    outputs; otherwise only from those that have not taken them."""
    objectives: Mapping[int, Objective] = field(default_factory=dict)
    """Losses that arise in blocks of the chain before its last."""
    field_sources: Mapping[str, OpenSource] = field(default_factory=dict)
    """Batch fields that come later than the others, by name."""
    attendants: tuple[AbstractContextManager[Any], ...] = ()
    """What is there, beside the stages, as long as the run is: processes that sources ask."""
    is_taught: bool = False
    """Whether a tap brings a lesson for every pass, so that the loss is never computed without."""
    lesson_fields: tuple[str, ...] = ()
    """Batch fields that are lessons of the loss, as a teacher's outputs are."""
    labelled_by: tuple[Workload, Tap] | None = None
    """The teacher that computes these fields elsewhere, and the tap that it would have as a stream
    of the same pipeline."""
    metrics: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    """What is measured of every pass, by name: called as the loss is, without a teacher."""
    begun: Mapping[str, Any] = field(default_factory=dict)
    """Where the weights that layers begin with are from, and their digest, for the manifest."""

    @property
    def is_written(self) -> bool:
        """Whether anything of it changes, so that it has checkpoints."""
        return self.is_trained or self.follows is not None

    @property
    def is_proposed(self) -> bool:
        """Whether its subnets follow from losses, so that none is known before the run."""
        return self.make_strategy is not None or self.recipe.probes != NO_PROBES

    @property
    def runs_in_training_mode(self) -> bool:
        """Whether its modules do."""
        follows = self.follows is not None and self.follows.mode == "train"
        return self.is_trained or self.in_training_mode or follows

    @property
    def wiring(self) -> StreamWiring:
        """What of this differs from a plain training run."""
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
        """A workload by what it is made of; ``identity`` as in :func:`define`."""
        definition = define(space, data, loss, recipe=recipe, **identity)
        return cls(space=space, data=data, loss=loss, definition=definition)

    def redefined(self, rules: Mapping[str, Rule] | None = None, **changes: Any) -> Workload:
        """The same space, data and loss under another definition.

        Args:
            rules: of shared layers, in the place of the space's own.
            changes: fields of the definition.

        Raises:
            ConfigError: for a rule of a layer that the space does not share, or a field's value
                that cannot be.
        """
        space = self.space.with_rules(rules) if rules else self.space
        if "recipe" in changes:
            changes["recipe"] = changes["recipe"].settled(space.drawn_counts)
        definition = replace(self.definition, rules=_texts(space), **changes)
        return replace(self, space=space, definition=definition)

    @property
    def recipe(self) -> Recipe:
        """How every step is taken."""
        return self.definition.recipe

    @property
    def loss_fields(self) -> tuple[str, ...]:
        """The batch fields that the loss is called with: as given, or as the loss says.

        Metrics are called with the same fields, but without a lesson.
        """
        if self.is_taught and not self.metrics:
            return tuple(self.definition.loss_fields) or distilled_fields(self.loss)
        return self._plain_fields

    @property
    def _plain_fields(self) -> tuple[str, ...]:
        """The batch fields that the loss is called with when there is no lesson."""
        return tuple(self.definition.loss_fields) or loss_fields(self.loss)

    @property
    def target_field(self) -> str:
        """The field whose values the loss is a mean over: ``target``, or else the first given."""
        given = self.definition.loss_fields
        return "target" if "target" in given or not given else given[0]

    def field(self, batch: Mapping[str, Any], name: str, number: int) -> torch.Tensor:
        """A batch's field, for a layer or the loss.

        Raises:
            ConfigError: when the batch has no such tensor, saying what asks for it.
        """
        try:
            return field_of(batch, name, number)
        except ConfigError as error:
            blocks = range(len(self.space))
            asking = [self.space.labels[b] for b in blocks if name in self.space.fields(b)]
            who = f"block {asking[0]}" if asking else "the loss"
            raise ConfigError(f"{error} ({who} needs it)") from None

    @property
    def judged_fields(self) -> tuple[str, ...]:
        """The batch fields that the loss is called with where subnets are judged by it."""
        fields = self._plain_fields
        return fields if self.target_field in fields else ("target",)

    @property
    def has_loss_layer(self) -> bool:
        """Whether the last layer is the loss module; see :class:`LossBlock`."""
        return isinstance(self.space.blocks[-1], LossBlock)

    @property
    def objective(self) -> Loss:
        """The user's own loss as the recipe changes it.

        Raises:
            ConfigError: when it cannot be changed so.
        """
        return self._changed(self.loss)

    def objective_of(self, last: Any) -> Loss:
        """The loss as the recipe changes it, with the parameters and buffers of the last layer.

        Args:
            last: the module of the last layer, which computes the loss if it is a loss module.
        """
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
    """What all streams of a pipeline have in common."""

    policy: str
    bulk: int
    """Subnets of a bulk; 0 for as many as there are stages."""
    passes: str
    probes: str
    clip_global_norm: bool
    """Whether the WRITEs of a step wait for one another."""
    threads: int

    @property
    def steps(self) -> Steps:
        """How passes form steps."""
        steps = with_probes(parse_passes(self.passes), self.probes)
        return replace(steps, is_gated=self.clip_global_norm)


def common(workloads: Sequence[Workload]) -> Common:
    """What streams must agree on to share a pipeline.

    Raises:
        ConfigError: naming what they do not agree on.
    """
    found: dict[str, Any] = {}
    for each in fields(Common):
        values = {_said(workload.definition, each.name) for workload in workloads}
        if len(values) > 1:
            said = " and ".join(sorted(map(str, values)))
            raise ConfigError(
                f"{each.name}: expected the same for all streams of a pipeline, found {said}"
            )
        (found[each.name],) = values
    return Common(**found)


def _said(definition: Definition, name: str) -> Any:
    if name in ("policy", "bulk"):
        return getattr(definition, name)
    value = getattr(definition.recipe, name)
    return bool(value) if name == "clip_global_norm" else value


def wiring_of(
    workloads: Sequence[Workload], taps: Sequence[Tap] = (), exchanges: Sequence[str] = ()
) -> Wiring:
    """How streams are joined: what each says of itself, and what is between them."""
    streams = tuple(workload.wiring for workload in workloads)
    return Wiring(streams=streams, taps=tuple(taps), exchanges=tuple(exchanges))


def define(
    space: Space, data: Batches, loss: Loss, *, recipe: Recipe, **identity: Any
) -> Definition:
    """The definition of a run; ``identity`` is its steps, seed, sampler, scale and policy."""
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
    """A batch's field.

    Raises:
        ConfigError: when the batch has no such tensor.
    """
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
    """Judge features in place of a loss: learn classes from some batches, ask for those of others.

    The workload's space then ends with the block whose output they are.
    """

    kind: str
    """``knn`` or ``ridge``."""
    data: Batches
    """To learn from."""
    batches: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRecipe:
    """The batches, and how they are used; the weights come with each evaluation."""

    workload: Workload
    """What was trained; its data are those to calibrate with."""
    held_out: Batches
    """Batches to judge by."""
    calibration: int
    """Batches that running statistics are taken from; 0 to use those of the training."""
    validation: int
    """Batches of ``held_out``."""
    ema: bool = False
    """Take the moving averages of the weights."""
    probe: FeatureProbe | None = None
