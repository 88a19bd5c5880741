"""Evaluate subnets with the weights of a run: forward only, block by block, on any stage.

A subnet's score is a row of ``Sums`` over all batches: of a loss and of ranks, or of a probe that
is trained on features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Protocol

import torch
from torch.nn import functional

from naspipe.config.blocks import LossBlock
from naspipe.config.errors import ConfigError
from naspipe.config.ids import FIRST_STREAM, LayerId, SequenceId, StreamId, Version
from naspipe.config.recipe import Recipe
from naspipe.config.space import Space
from naspipe.config.wiring import InputName
from naspipe.engine.events import Task
from naspipe.engine.policies import BulkPolicy
from naspipe.evaluation.calibration import Norm, blocks_to_calibrate, find_norms, fresh_statistics
from naspipe.jobs.losses import Loss, check_one_number, name_of_loss
from naspipe.jobs.workload import EvaluationRecipe, FeatureProbe, field_of
from naspipe.machine.determinism import block_seed, seed_draws
from naspipe.machine.device_waits import Wait, on_host
from naspipe.machine.out_of_memory import (
    DeviceFullError,
    MemoryRetry,
    explain_shortage,
    raising_shortages,
)
from naspipe.search.scores import Scores
from naspipe.store.checkpoints import Checkpoint
from naspipe.worker.blocks.forward_only import lent_buffers
from naspipe.worker.blocks.guards import times_edited
from naspipe.worker.blocks.ports import BlockResult
from naspipe.worker.blocks.specs import Gradient, Tensors
from naspipe.worker.checkpoints.restored import Restored
from naspipe.worker.layers.bound_layer import EditedParameterError, ParameterMarks, known_edit
from naspipe.worker.layers.layer_store import LayerStore
from naspipe.worker.layers.stored_layer import StoredLayer
from naspipe.worker.placement import Placement


class BatchFields:
    """Fetches each field once, and again if a layer has changed it in place.

    All subnets therefore use the same batches.
    """

    def __init__(
        self,
        batch: Callable[[int], Mapping[str, torch.Tensor]],
        to_device: Callable[[torch.Tensor], torch.Tensor],
    ) -> None:
        self._batch = batch
        self._to_device = to_device
        self._kept: dict[tuple[int, str], tuple[torch.Tensor, int]] = {}
        """Fields, with the version of each tensor when it was fetched."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (field for field, _ in self._kept.values())

    def of(self, number: int, name: str) -> torch.Tensor:
        """Return a field of a batch as made by the data; refuse a field that is not a tensor."""
        field, changes = self._kept.get((number, name), (None, 0))
        if field is None or times_edited(field) != changes:
            field = self._to_device(field_of(self._batch(number), name, number))
            self._kept[number, name] = field, times_edited(field)
        return field


TOP = 5


def batch_sums(
    loss: Loss, outputs: Tensors, target: torch.Tensor, fields: Tensors | None = None
) -> torch.Tensor:
    """Return one batch's row of ``Sums``: five float64 values.

    The loss is called with the outputs and the fields, or with the target if no fields are given.
    """
    mean = loss(*outputs, *((target,) if fields is None else fields))
    check_one_number(f"loss {name_of_loss(loss)}", mean)
    padding = getattr(loss, "padding", getattr(loss, "ignore_index", None))
    counts = target != padding if isinstance(padding, int) else torch.ones_like(target).bool()
    targets = float(on_host(counts.sum(), Wait.SCORE))
    whole = float(on_host(mean.double(), Wait.SCORE)) * targets if targets else 0.0
    row = [whole, targets, 0.0, 0.0, 0.0]
    scores = outputs[0]
    if not target.is_floating_point() and scores.shape[:-1] == target.shape and scores.dim() > 1:
        ranks = _ranks(scores.flatten(0, -2), target.flatten())[counts.flatten()]
        first, top = (float(on_host((ranks < n).sum(), Wait.SCORE)) for n in (1, TOP))
        row[2:] = [targets, first, top]
    return torch.tensor(row, dtype=torch.float64)


def _ranks(scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the number of classes that rank before the target; ties are broken by class index.

    A target whose score is NaN ranks last.
    """
    wanted = scores.gather(1, target.clamp(0, scores.size(1) - 1).unsqueeze(1))
    is_earlier = torch.arange(scores.size(1), device=scores.device) < target.unsqueeze(1)
    before = (scores > wanted) | ((scores == wanted) & is_earlier)
    return before.sum(1).masked_fill(wanted.isnan().squeeze(1), scores.size(1))


NEIGHBOURS, TEMPERATURE = 20, 0.07
"""Constants of the nearest-neighbour vote (Wu et al. 2018, section 3.4), for small banks."""

RIDGE = 1e-3
"""Regularization of the linear probe: added to the covariance, relative to its mean diagonal."""


def pooled(output: torch.Tensor) -> torch.Tensor:
    """Return features (batch, features) as means over pixels (dimensions 2, 3) or tokens (1)."""
    if output.dim() == 4:
        return output.mean((2, 3))
    return output.mean(1) if output.dim() == 3 else output


def probe_sums(
    kind: str, outputs: Sequence[Tensors], targets: Sequence[torch.Tensor], bank: int
) -> torch.Tensor:
    """Return a row of ``Sums``: five float64 values, with 1 - accuracy instead of a loss.

    Args:
        kind: ``knn`` or ``ridge``.
        outputs: outputs of every batch; only the first tensor of each is used.
        targets: integers of shape (batch,) for every batch.
        bank: number of batches, from the first, to train the probe on; the others are scored.
    """
    features = [pooled(output[0]).double() for output in outputs]
    known, asked = torch.cat(features[:bank]), torch.cat(features[bank:])
    labels, wanted = torch.cat(list(targets[:bank])), torch.cat(list(targets[bank:]))
    classes = int(max(labels.max(), wanted.max())) + 1
    score = {"knn": _neighbours, "ridge": _ridge}[kind](known, labels, asked, classes)
    ranks = _ranks(score, wanted)
    count, right = float(len(wanted)), float((ranks < 1).sum())
    row = [count - right, count, count, right, float((ranks < TOP).sum())]
    return torch.tensor(row, dtype=torch.float64)


def _neighbours(
    known: torch.Tensor, labels: torch.Tensor, asked: torch.Tensor, classes: int
) -> torch.Tensor:
    """Return the votes of the nearest features, weighted by cosine similarity."""
    likeness = functional.normalize(asked, dim=1) @ functional.normalize(known, dim=1).T
    nearest, which = likeness.topk(min(NEIGHBOURS, len(known)), dim=1)
    votes = functional.one_hot(labels[which], classes).double()
    return (votes * (nearest / TEMPERATURE).exp()[:, :, None]).sum(1)


def _ridge(
    known: torch.Tensor, labels: torch.Tensor, asked: torch.Tensor, classes: int
) -> torch.Tensor:
    """Closed-form ridge regression on the classes, with standardized features and a bias."""
    mean, spread = known.mean(0), known.std(0).clamp_min(1e-6)
    x, y = (known - mean) / spread, functional.one_hot(labels, classes).double()
    covariance = x.T @ x
    damping = RIDGE * covariance.diagonal().mean()
    eye = torch.eye(len(covariance), dtype=x.dtype, device=x.device)
    weights = torch.linalg.solve(covariance + damping * eye, x.T @ (y - y.mean(0)))
    score: torch.Tensor = ((asked - mean) / spread) @ weights + y.mean(0)
    return score


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The data, the loss and the weights with which every subnet of a search is evaluated."""

    space: Space
    weights: Restored
    """The layers of a run; layers that the run never used have their initial weights."""
    loss: Loss
    loss_fields: tuple[str, ...]
    target: str
    """The field with the classes, whose values are counted."""
    recipe: Recipe
    """The run's recipe, for precision and threads."""
    seed: int
    """The run's seed, for layers that it never used."""
    batch: Callable[[int], Mapping[str, torch.Tensor]]
    """Returns a batch by number: first the calibration batches, then the validation batches."""
    calibration: int
    """Number of batches for running statistics; 0 to use those of the training."""
    validation: int
    ema: bool = False
    """True to use the moving averages of the weights."""
    probe: FeatureProbe | None = None
    """A probe of features, which is trained on the first validation batches."""
    calibrated: int
    """Number of blocks, from the first, that the calibration batches pass through."""

    @property
    def stateless_recipe(self) -> Recipe:
        """The run's recipe without optimizer state, so that layers only need memory for weights."""
        return Recipe(precision=self.recipe.precision, threads=self.recipe.threads)


def evaluation_of(recipe: EvaluationRecipe, checkpoint: Checkpoint) -> Evaluation:
    workload, seed = recipe.workload, recipe.workload.definition.seed
    calibrated = blocks_to_calibrate(workload.space) if recipe.calibration else 0
    calibration = recipe.calibration if calibrated else 0
    probe = recipe.probe

    def batch(number: int) -> Mapping[str, torch.Tensor]:
        if number < calibration:
            return workload.data(seed, number)
        number -= calibration
        if probe is not None and number < probe.batches:
            return probe.data(seed, number)
        return recipe.held_out(seed, number - (probe.batches if probe else 0))

    return Evaluation(
        space=workload.space,
        weights=Restored(workload.space, FIRST_STREAM, checkpoint),
        loss=workload.loss,
        loss_fields=workload.judged_fields,
        target=workload.target_field,
        recipe=workload.definition.recipe,
        seed=seed,
        batch=batch,
        calibration=calibration,
        validation=recipe.validation + (probe.batches if probe else 0),
        probe=probe,
        calibrated=calibrated,
        ema=recipe.ema,
    )


class EvaluationCompute:
    """Runs blocks of subnets without training; the counterpart of :class:`StageCompute`.

    A task's input has the tensors of all batches, so a subnet is one forward through the pipeline.
    It does not change the state of a layer, so that scores do not depend on the order of the
    subnets or on their stages.
    """

    def __init__(self, evaluation: Evaluation, placement: Placement) -> None:
        self.placement = placement
        self.memory_retry = MemoryRetry(self.free_memory)
        self._evaluation = evaluation
        store = LayerStore(
            evaluation.space,
            evaluation.seed,
            evaluation.stateless_recipe,
            self.memory_retry.wrapped(placement.adopt),
            policy=BulkPolicy(bulk=1),  # all reads are of the current version
            restore=self._restore,
        )
        self.stores = (store,)
        """The layers of the one stream."""
        self._known_norms: dict[tuple[LayerId, int], Sequence[Norm]] = {}
        """Norms by layer and option."""
        self._known_edits: dict[LayerId, str] = {}
        """For each layer, a parameter that a torch module in it changes, or ""."""
        self._states: dict[SequenceId, list[Tensors]] = {}
        """For each subnet, the tensors of every batch that has blocks left."""
        self._fields = BatchFields(evaluation.batch, placement.to_device)

    def accept(self, task: Task, tensors: tuple[Gradient, ...], name: InputName) -> None:
        """Receive the input of a task: the tensors of all batches, one after the other."""
        receive = self.memory_retry.wrapped(self.placement.receive)
        moved = (receive(tensor) for tensor in tensors if tensor is not None)
        self._states[task.sequence_id] = [tuple(moved)]

    def output(self, task: Task, name: InputName) -> tuple[Gradient, ...]:
        return tuple(chain.from_iterable(self._states.pop(task.sequence_id)))

    def run_block(
        self, task: Task, layer: LayerId, version: Version, option: int
    ) -> BlockResult | None:
        """Compute one block of a subnet; return its sums (see ``Sums``) after the last block.

        Raises:
            torch.OutOfMemoryError: if there is not enough memory; nothing has been changed then.
            ConfigError: if a layer, the loss or a batch is invalid.
        """
        evaluation, block = self._evaluation, layer.block
        states = self._split(self._states.get(task.sequence_id), block)
        numbers = self._numbers(block)
        stored = self.layer(layer)
        setting = evaluation.space.blocks[block].setting(option)
        call = partial(stored.call, **setting)
        norms: Sequence[Norm] = ()
        if numbers.start < evaluation.calibration:
            norms = self._norms(layer, option, stored, call, states[0])
        outputs: list[Tensors] = []
        with (
            raising_shortages(),
            torch.no_grad(),
            self._autocast(),
            lent_buffers(stored.module),
            fresh_statistics(self.label(layer), stored.module, norms) as fresh,
            self._kept_parameters(layer, stored),
        ):
            for number, state in zip(numbers, states, strict=True):
                if number == evaluation.calibration:
                    fresh.settle()
                seed_draws(block_seed(evaluation.seed, 0, block, number))
                outputs.append(self._forward(layer, call, state, number))
        goes_on = self._numbers(block + 1)
        kept = outputs[len(outputs) - len(goes_on) :]
        self.placement.finish_block()
        if block < len(evaluation.space) - 1:
            self._states[task.sequence_id] = kept
            return None
        self._states.pop(task.sequence_id, None)
        return BlockResult(self._sums(stored.module, kept, goes_on))

    def _norms(
        self,
        layer: LayerId,
        option: int,
        stored: StoredLayer,
        call: Callable[..., Any],
        state: Tensors,
    ) -> Sequence[Norm]:
        """Return the norms of a layer that update statistics; cached for each option."""
        if (layer, option) not in self._known_norms:

            def first() -> None:
                seed_draws(block_seed(self._evaluation.seed, 0, layer.block, 0))
                self._forward(layer, call, state, 0)

            kept = self._kept_parameters(layer, stored)
            with raising_shortages(), self._autocast(), lent_buffers(stored.module), kept:
                found = find_norms(self.label(layer), stored.module, first)
            self._known_norms[layer, option] = found
        return self._known_norms[layer, option]

    @contextmanager
    def _kept_parameters(self, layer: LayerId, stored: StoredLayer) -> Iterator[None]:
        """Context that keeps a subnet from changing the parameters of a layer.

        Raises:
            EditedParameterError: if the layer's forward changes them, unless a known torch module
                does.
        """
        if layer not in self._known_edits:
            self._known_edits[layer] = known_edit(stored.module)
        is_known = bool(self._known_edits[layer])
        copies = {n: p.clone() for n, p in stored.parameters.items()} if is_known else {}
        marks = ParameterMarks(stored.parameters, looks_at_bits=False)
        try:
            yield
        finally:
            with torch.no_grad():
                for name, copy in copies.items():
                    stored.parameters[name].copy_(copy)
        if not is_known and (edited := marks.changed()):
            raise EditedParameterError(
                f"layer {self.label(layer)}: expected a forward in evaluation mode that leaves the "
                f"parameters as they are, found one that changes {edited}, which other subnets "
                f"have, too; change it in training mode only (if self.training: ...)"
            )

    def _numbers(self, block: int) -> range:
        evaluation = self._evaluation
        first = 0 if block < evaluation.calibrated else evaluation.calibration
        return range(first, evaluation.calibration + evaluation.validation)

    def _split(self, states: list[Tensors] | None, block: int) -> list[Tensors]:
        """Return the tensors of each batch for a block; other stages send them as one sequence."""
        count = len(self._numbers(block))
        if states is None:
            return [()] * count
        if len(states) == count:
            return states
        tensors = list(chain.from_iterable(states))
        width = len(tensors) // count
        return [tuple(tensors[at : at + width]) for at in range(0, len(tensors), width)]

    def _forward(
        self, layer: LayerId, call: Callable[..., Any], state: Tensors, number: int
    ) -> Tensors:
        fields = self._evaluation.space.fields(layer.block)
        result = call(*state, *(self._fields.of(number, name) for name in fields))
        outputs = result if isinstance(result, tuple) else (result,)
        if not all(isinstance(output, torch.Tensor) for output in outputs):
            raise ConfigError(f"layer {self.label(layer)}: expected tensors, found {type(result)}")
        return self.placement.apart(layer, outputs)

    def _sums(
        self, last: torch.nn.Module, outputs: Sequence[Tensors], numbers: Sequence[int]
    ) -> torch.Tensor:
        """Return the sums over all validation batches, in their order.

        A loss that is the last layer has its trained parameters. Its buffers do not change, so that
        batches and subnets do not affect one another.
        """
        probe, of = self._evaluation.probe, self._fields.of
        if probe is not None:
            targets = [of(number, "target") for number in numbers]
            return probe_sums(probe.kind, outputs, targets, probe.batches)
        with torch.no_grad(), self._autocast():
            has_layer = isinstance(self._evaluation.space.blocks[-1], LossBlock)
            loss = last if has_layer else self._evaluation.loss
            target, rows = self._evaluation.target, []
            for number, output in zip(numbers, outputs, strict=True):
                fields = tuple(of(number, name) for name in self._evaluation.loss_fields)
                with lent_buffers(last) if has_layer else nullcontext():
                    rows.append(batch_sums(loss, output, of(number, target), fields))
        total = torch.zeros(5, dtype=torch.float64)
        for row in rows:
            total += row
        return total

    def _autocast(self) -> AbstractContextManager[Any]:
        if self._evaluation.recipe.precision == "bf16":
            kind = self.placement.torch_device.type
            return torch.autocast(kind, dtype=torch.bfloat16)
        return nullcontext()

    def layer(self, layer: LayerId) -> StoredLayer:
        """Return a layer with the run's weights, which is made on first use."""
        return self.stores[layer.stream][layer]

    def label(self, layer: LayerId) -> str:
        return self._evaluation.space.label(layer.block, layer.candidate)

    def retire(self, stream: StreamId, sequence_id: SequenceId) -> None:
        self._states.pop(sequence_id, None)

    def evict(self, layer: LayerId) -> None:
        self.placement.evict(layer)

    @property
    def kept_bytes(self) -> int:
        """Bytes of device memory of the subnets in flight and of the batches."""
        tensors = (
            *chain.from_iterable(chain.from_iterable(self._states.values())),
            *self._fields,
        )
        storages = (tensor.untyped_storage() for tensor in tensors)
        return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())

    def explain_shortage(self, error: torch.OutOfMemoryError, doing: str) -> DeviceFullError:
        layers = self.placement.layer_use(stored for _, stored in self.stores[0].items())
        return explain_shortage(error, doing, layers, self.kept_bytes)

    def free_memory(self) -> None:
        """Release torch's cached device memory."""
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.empty_cache()

    def _restore(self, layer: LayerId, stored: StoredLayer) -> None:
        self._evaluation.weights.restore_weights(layer, stored, self._evaluation.ema)
        stored.module.eval()


class ScoreSheet:
    """See :class:`naspipe.evaluation.evaluation.ScoreObserver`."""

    def __init__(self) -> None:
        self.scores: dict[int, Scores] = {}
        """Scores by subnet."""

    def on_scores(self, subnet: int, scores: Scores) -> None:
        self.scores[subnet] = scores

    def on_busy(self, stage: int, busy_ns: int, elapsed_ns: int) -> None:
        """Do nothing."""


class ScoreObserver(Protocol):
    """Receives the progress of a search in the launcher's process."""

    def on_scores(self, subnet: int, scores: Scores) -> None:
        """Receive the scores of a subnet; subnets arrive in any order."""
        ...

    def on_busy(self, stage: int, busy_ns: int, elapsed_ns: int) -> None:
        """Receive a stage's compute time so far and the time since it started."""
        ...
