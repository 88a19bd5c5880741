"""Train the streams of a run in one process, one step after another, as a plain PyTorch loop does.

The rules are those of docs/reproducibility.md. The loop trains and changes the user's own modules,
with their hooks and closures. Run it in a forked process that is used for nothing else. One loop
supports supernets, teachers, joint losses, sandwiches and blockwise distillation: each step
computes the streams in the order of their taps, and then updates all of them.
"""

from __future__ import annotations

import copy
import math
import os
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch import nn

from naspipe.config.blocks import LossBlock
from naspipe.config.errors import NotFiniteError
from naspipe.config.ids import StreamId
from naspipe.config.recipe import Recipe
from naspipe.config.rules import Follows, Frozen, MomentumUpdate
from naspipe.config.settings import GivenCode
from naspipe.config.wiring import Tap, TapRole
from naspipe.jobs.losses import has_users_class, has_users_code
from naspipe.jobs.workload import Workload
from naspipe.store.checkpoints import Checkpoint
from naspipe.verification.audit import (
    HINT,
    STEPS_BEFORE,
    Audit,
    attributes,
    changed_attributes,
    disturb,
)
from naspipe.verification.plain_layer import Gradients, LayerState, PlainLayer, Statistics
from naspipe.verification.records import NotVerifiable, StepRecord, StreamRecord, loss_bits
from naspipe.worker.checkpoints.restored import aligned

Tensors = tuple[torch.Tensor, ...]
Place = tuple[int, int]
"""A block and a candidate."""
Tapped = dict[tuple[int, int, int], Tensors]
"""Outputs of one step by stream, block and pass, for the taps that use them."""


class PlainLoop:
    """The plain loop of streams that train together.

    Args:
        workloads: the workload of each stream, as in a training run.
        taps: the blocks that use outputs of blocks of other streams.
        subnets: for each stream, the choices of each pass in sequence order, or None for a pass
            that is skipped; they may be generated during the loop.
        device: device of all computation.

    If a strategy or probes choose the subnets, ``subnets`` must be their choices in the run,
    because the loop does not repeat the choice.

    Raises:
        NotVerifiable: for a run that the loop does not support.
    """

    def __init__(
        self,
        workloads: Sequence[Workload],
        taps: Sequence[Tap],
        subnets: Sequence[Iterable[Sequence[int] | None]],
        device: str = "cpu",
    ) -> None:
        for workload in workloads:
            check_covered(workload)
        set_up_torch(workloads[0].recipe.threads)
        taps = [*taps, *_taps_of_sandwiches(workloads)]
        self._streams = [
            _Stream(number, workload, taps, iter(own), torch.device(device))
            for number, (workload, own) in enumerate(zip(workloads, subnets, strict=True))
        ]
        self._ordered = _by_taps(self._streams, taps)
        self._take_originals()
        self._next_step, self._remakes_at = 0, STEPS_BEFORE
        self.steps = max(workload.definition.steps for workload in workloads)
        """Number of steps of the longest stream."""

    def resume(self, step: int, states: Sequence[Mapping[str, LayerState]]) -> None:
        """Continue from a checkpoint instead of starting with step 0.

        Args:
            step: first step to train; ``subnets`` starts with the subnets of this step.
            states: for each stream, the layers that earlier steps have used, by label.
        """
        self._next_step, self._remakes_at = step, step + STEPS_BEFORE
        for stream, own in zip(self._streams, states, strict=True):
            for label, state in own.items():
                place = stream.workload.space.layer(label)[1:]
                layer = stream.layers.get(place) or stream.make(place)
                layer.restore(state)
                stream.used.add(place)

    def step(self) -> StepRecord:
        """Train the next step of every stream that has one.

        Raises:
            NotFiniteError: for a loss that ends the run.
        """
        step, self._next_step = self._next_step, self._next_step + 1
        tapped: Tapped = {}
        under_way = [each for each in self._ordered if step < each.workload.definition.steps]
        for stream in under_way if step == self._remakes_at else ():
            if stream.workload.is_written:
                stream.make_again(step)
        for stream in under_way:
            stream.compute(step, tapped)
        for stream in under_way:
            if stream.workload.is_trained:
                stream.update(step)
        for stream in under_way:
            if stream.workload.follows is not None:
                stream.follow(step, stream.workload.follows, self._streams)
        return StepRecord(step, tuple(stream.take_record() for stream in self._streams))

    def tensors(self) -> Iterator[tuple[int, str, str, Any]]:
        """Yield all current values as (stream, label of the layer, name of the tensor, value).

        The names are those of a checkpoint. Layers that no pass has used, or only probes, are
        omitted.
        """
        for stream in self._streams:
            for place in sorted(stream.used):
                layer = stream.layers[place]
                for name, value in layer.tensors():
                    yield stream.number, layer.label, name, value

    def _take_originals(self) -> None:
        """Train the user's own modules if factories copy them.

        If several layers are copies of one module, the first that is trained is the module itself.
        The others are copied now, before the first step changes it.
        """
        taken: set[int] = set()
        for stream in sorted(self._streams, key=lambda each: not each.workload.is_trained):
            for block, own in enumerate(stream.workload.space.blocks):
                for candidate, factory in enumerate(own.candidates):
                    original = getattr(factory, "original", None)
                    if original is not None:
                        parts = set(_identities(original))
                        stream.keep_spare((block, candidate), original)
                        stream.make((block, candidate), in_place=not parts & taken)
                        taken |= parts


def with_teachers(
    workloads: Sequence[Workload], taps: Sequence[Tap]
) -> tuple[list[Workload], list[Tap]]:
    """Return the streams of a run, with teachers that compute labels elsewhere as further streams.

    A label equals the output that such a teacher would give to the loss as a stream of the
    pipeline.
    """
    found, wired = list(workloads), list(taps)
    for number, workload in enumerate(workloads):
        if workload.labelled_by is None:
            continue
        teacher, tap = workload.labelled_by
        kept = {
            name: source
            for name, source in workload.field_sources.items()
            if name not in workload.lesson_fields
        }
        found[number] = replace(workload, field_sources=kept, lesson_fields=(), is_taught=True)
        source, sink = (StreamId(len(found)), tap.source[1]), (StreamId(number), tap.sink[1])
        wired.append(replace(tap, source=source, sink=sink))
        found.append(teacher)
    return found, wired


def check_covered(workload: Workload) -> None:
    """Check that the plain loop supports a stream.

    Raises:
        NotVerifiable: with the reason if it does not.
    """
    if workload.definition.policy not in ("csp", "sequential"):
        raise NotVerifiable(
            f"because policy={workload.definition.policy} leaves results that depend on the stages"
        )
    if workload.objectives:
        raise NotVerifiable("because losses arise in blocks before the last one")
    if workload.field_sources or workload.lesson_fields:
        raise NotVerifiable("because batch fields come from other processes")


def set_up_torch(threads: int) -> None:
    """Configure this process to compute the same bits as a run with ``threads`` threads."""
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.set_num_threads(threads)
    for kind in ("cpu", "cuda"):
        torch.set_autocast_enabled(kind, False)


@dataclass(slots=True)
class _Use:
    """How the passes of a step used a layer."""

    layer: PlainLayer
    passes: int = 0
    options: set[int] = field(default_factory=set)
    gradients: dict[int, Gradients] = field(default_factory=dict)
    """Gradients by pass."""
    statistics: list[Statistics] = field(default_factory=list)
    """Statistics in pass order."""


class _Stream:
    """One stream: its layers, and the results of the current step so far."""

    def __init__(
        self,
        number: int,
        workload: Workload,
        taps: Sequence[Tap],
        subnets: Iterator[Sequence[int] | None],
        device: torch.device,
    ) -> None:
        self.number, self.workload = number, workload
        self.layers: dict[Place, PlainLayer] = {}
        self.used: set[Place] = set()
        """Layers that a pass, other than a probe, has used."""
        self._spares: dict[Place, nn.Module] = {}
        """Copies of users' modules from before the loop trained them."""
        self._attributes: dict[Place, Mapping[str, Any]] = {}
        """Initial attributes of each layer, other than parameters and buffers."""
        self._earlier: dict[Place, PlainLayer] = {}
        """Replaced layers, in a step before which layers were made again."""
        self._is_disturbed = False
        """True if the current step also calls user code for another batch in between."""
        self._subnets, self._device = subnets, device
        self._seed, self._recipe = workload.definition.seed, workload.recipe
        self._passes = workload.recipe.steps.trained
        self._probes = workload.recipe.steps.probes
        self._is_joined = workload.is_trained and callable(getattr(workload.loss, "joined", None))
        self._tapped_blocks = {tap.source[1] for tap in taps if tap.source[0] == number}
        self._taps = [tap for tap in taps if tap.sink[0] == number]
        trains = workload.runs_in_training_mode
        self._has_own_norms = trains and (
            not workload.is_trained or self._recipe.norms != "ordered"
        )
        """True if norms do not update their running statistics before the step ends."""
        self._role = "" if workload.is_trained else "/teacher"
        self._audit = Audit()
        self._uses: dict[Place, _Use] = {}
        self._losses: list[torch.Tensor] = []
        self._written: list[PlainLayer] = []
        self._remembered: list[tuple[str, str]] = []

    def keep_spare(self, place: Place, original: nn.Module) -> None:
        """Copy a module with user code before the first step changes it."""
        block = self.workload.space.blocks[place[0]]
        if self.workload.is_written and has_users_code(block, original):
            self._spares[place] = self._made(place)

    def _made(self, place: Place, in_place: bool = False) -> nn.Module:
        factory: Any = self.workload.space.blocks[place[0]].candidates[place[1]]
        start_draws(f"{self._seed}/layer/{place[0]}/{place[1]}")
        module: nn.Module = factory.in_place() if in_place else factory()
        return module

    def make(self, place: Place, in_place: bool = False) -> PlainLayer:
        """Make a layer with its own draws; ``in_place`` uses the user's module itself."""
        return self._wrap(place, self._made(place, in_place))

    def make_again(self, step: int) -> None:
        """Make the layers that run user code again, from the state that a checkpoint would have."""
        optimizer = self._recipe.optimizer
        has_own_optimizer = isinstance(optimizer, GivenCode) or ":" in optimizer
        for place in sorted(self.used):
            layer, block = self.layers[place], self.workload.space.blocks[place[0]]
            if not has_own_optimizer and not has_users_code(block, layer.module):
                continue
            self._earlier[place] = layer
            module = self._spares[place] if place in self._spares else self._made(place)
            if (before := self._attributes.get(place)) is not None:
                changed = changed_attributes(before, layer.module)
                self._remembered += [(layer.label, name) for name in changed]
            self._wrap(place, module).restore(layer.state)
            layer.end_training()
        self._spares.clear()
        self._is_disturbed = True
        if self._earlier or has_users_class(self.workload.loss):
            self._audit.note("", HINT.format(step=step))

    def _wrap(self, place: Place, module: nn.Module) -> PlainLayer:
        block = self.workload.space.blocks[place[0]]
        label = self.workload.space.label(*place)
        self._audit.look_at_hooks(label, module)
        trains = self.workload.runs_in_training_mode
        self.layers[place] = PlainLayer(label, block, module.to(self._device), self._recipe, trains)
        if has_users_code(block, module):
            self._attributes[place] = attributes(module)
        return self.layers[place]

    def compute(self, step: int, tapped: Tapped) -> None:
        """Run the forwards of a step's passes, and their backwards if the stream is trained."""
        workload = self.workload
        count = self._probes + self._passes
        subnets = [next(self._subnets) for _ in range(count)]
        chains = [() if each is None else workload.space.chain(each) for each in subnets]
        for probe in range(self._probes):
            self._probe(step, probe, chains.pop(0), tapped)
        passes = [number for number in range(self._passes) if number not in workload.left_out]
        with ExitStack() as reading:
            for number in passes:
                self._use(step, chains[number], reading)
            self.used |= self._uses.keys()
            if not workload.is_trained:
                with torch.no_grad():
                    for number in passes:
                        self._forward(step, number, chains[number], tapped)
                return
            with torch.enable_grad():
                if self._is_joined:
                    self._train_jointly(step, chains, tapped)
                    return
                for number in passes:
                    (loss,) = self._forward(step, number, chains[number], tapped)
                    self._losses.append(loss.detach())
                    self._look_at_loss(loss)
                    if self._has_backward(step, loss):
                        self._part(step, number, loss).backward()  # type: ignore[no-untyped-call]
                    del loss  # and with it the graph, before the next forward makes another
                    self._take_gradients(number, chains[number])

    def _use(self, step: int, chain: Sequence[int], reading: ExitStack) -> None:
        """Switch the layers of a subnet to the versions that a step reads."""
        for place in self._places(chain):
            if place not in self._uses:
                layer = self.layers.get(place) or self.make(place)
                self._uses[place] = _Use(layer)
                reading.enter_context(layer.as_read_by(step))

    @torch.no_grad()
    def _probe(self, step: int, probe: int, chain: Sequence[int], tapped: Tapped) -> None:
        """Compute the loss of a subnet that may be trained, without changing buffers."""
        with ExitStack() as reading:
            self._use(step, chain, reading)
            for use in self._uses.values():
                reading.enter_context(use.layer.buffers_lent())
            (loss,) = self._forward(step, probe - self._probes, chain, tapped)
        self._losses.append(loss.detach())
        self._uses = {}

    def _places(self, chain: Sequence[int]) -> list[Place]:
        blocks = self.workload.space.blocks
        return [(block, blocks[block].candidate(option)) for block, option in enumerate(chain)]

    def _train_jointly(self, step: int, chains: Sequence[Sequence[int]], tapped: Tapped) -> None:
        """Compute one loss over the outputs of all passes after all forwards, and its backwards."""
        numbers = range(self._passes)
        outputs = [self._forward(step, number, chains[number], tapped) for number in numbers]
        end = len(self.workload.space) - 1
        lessons = self._tapped_by(end, 0, TapRole.LESSON, tapped)
        flat = [tensor for own in outputs for tensor in own]
        joint: Any = self.workload.loss
        with self._autocast():
            loss: torch.Tensor = joint.joined(flat, list(lessons))
            if self._is_disturbed:
                disturb(lambda *other: joint.joined(list(other), list(lessons)), *flat)
        self._losses += [loss.detach()] * self._passes
        self._look_at_loss(loss)
        if not self._has_backward(step, loss):
            return
        gradients = iter(torch.autograd.grad(loss, flat))
        for number in numbers:
            own = [next(gradients) for _ in outputs[number]]
            torch.autograd.backward(outputs[number], own)
            self._take_gradients(number, chains[number])

    def _forward(self, step: int, number: int, chain: Sequence[int], tapped: Tapped) -> Tensors:
        """Run one pass; return the outputs of the last block, or the loss if there is one."""
        workload = self.workload
        batch = workload.data(self._seed, self._batch_of(step, number))
        if self._is_disturbed:  # a stage may make batches in advance
            disturb(lambda: workload.data(self._seed, self._batch_of(step, number) + 1))
        tensors: Tensors = ()
        before = 0
        last = len(chain) - 1
        has_loss = workload.is_trained and not self._is_joined
        for block, (place, option) in enumerate(zip(self._places(chain), chain, strict=True)):
            use = self._uses[place]
            taken = self._tapped_by(block, number, TapRole.INPUT, tapped)
            fields = self._fields(batch, workload.space.fields(block))
            ends = has_loss and block == last
            loss_fields = self._fields(batch, workload.loss_fields) if ends else ()
            key = start_draws(f"{self._seed}/{step}/{block}/{number}{self._role}")
            with self._autocast():
                aliases = [tensor.view_as(tensor) for tensor in (*tensors, *taken)]
                for alias in aliases:
                    if alias.grad_fn is not None:  # runs before the previous block's backward
                        alias.grad_fn.register_prehook(partial(_start_backward, before))
                watched = self._audit.forward(use.layer.label, use.layer.module)
                aside: AbstractContextManager[Statistics] = nullcontext([])
                if self._has_own_norms:
                    aside = use.layer.statistics_aside()
                with watched, aside as statistics:
                    found = use.layer.call(option, *aliases, *fields)
                    tensors = found if isinstance(found, tuple) else (found,)
                    earlier = self._earlier.get(place)
                    if earlier is not None:
                        disturb(partial(earlier.call, option), *aliases, *fields)
                    if block in self._tapped_blocks:
                        own = tuple(tensor.detach() for tensor in tensors)
                        tapped[self.number, block, number] = own
                    if ends:
                        lessons = self._tapped_by(block, number, TapRole.LESSON, tapped)
                        last_module = (earlier or use.layer).module
                        loss = self._loss(use.layer.module, tensors, lessons, loss_fields)
                        if self._is_disturbed:
                            given = (*tensors, *lessons, *loss_fields)
                            cuts = len(tensors), len(tensors) + len(lessons)
                            disturb(partial(self._flat_loss, last_module, cuts), *given)
                        tensors = (loss,)
                if ends and tensors[0].requires_grad:
                    hook = partial(_start_backward, key)
                    tensors[0].register_hook(hook)  # type: ignore[no-untyped-call]
            use.passes += 1
            use.options.add(option)
            use.statistics.append(statistics)
            before = key
        return tensors

    def _flat_loss(
        self, last: nn.Module, cuts: tuple[int, int], *given: torch.Tensor
    ) -> torch.Tensor:
        return self._loss(last, given[: cuts[0]], given[cuts[0] : cuts[1]], given[cuts[1] :])

    def _look_at_loss(self, loss: torch.Tensor) -> None:
        modules = [layer.module for layer in self.layers.values()]
        inside = {
            id(each) for module in modules for each in (*module.parameters(), *module.buffers())
        }
        self._audit.look_at_loss("loss", self.workload.loss, loss, inside)

    def _batch_of(self, step: int, number: int) -> int:
        """Return the number of a pass's batch; a probe (negative) uses its first trained pass's."""
        steps = self._recipe.steps
        if steps.shares_batch:
            return step
        if number < 0:
            draws = self._passes if steps.draws_each else 1
            number = (number + self._probes) * draws // self._probes
        return step * self._passes + number

    def _loss(
        self, last: nn.Module, outputs: Tensors, lessons: Tensors, fields: Tensors
    ) -> torch.Tensor:
        """Compute the user's loss, or its distillation form if there are teacher outputs."""
        is_layer = isinstance(self.workload.space.blocks[-1], LossBlock)
        loss: Any = last if is_layer else self.workload.loss
        if lessons:
            if callable(getattr(loss, "distill", None)):
                found: torch.Tensor = loss.distill(*outputs, *lessons, *fields)
                return found
            return nn.functional.cross_entropy(outputs[0], lessons[0].softmax(1))
        if self._recipe.label_smoothing:
            loss = copy.copy(loss)
            loss.label_smoothing = self._recipe.label_smoothing
        found = loss(*outputs, *fields)
        return found

    def _has_backward(self, step: int, loss: torch.Tensor) -> bool:
        if self._recipe.nonfinite == "keep" or bool(loss.isfinite().all()):
            return loss.requires_grad  # False in architecture steps of edges without a choice
        if self._recipe.nonfinite == "skip":
            return False
        raise NotFiniteError(f"step {step}: expected a finite loss, found {float(loss):g}")

    def _part(self, step: int, number: int, loss: torch.Tensor) -> torch.Tensor:
        """Scale a pass's loss by its weight in the step's average."""
        steps = self._recipe.steps
        if steps.distills or steps.average != "passes" or self._passes == 1:
            return loss
        if self._recipe.weight != "items":
            return loss / self._passes
        first = step * self._passes
        items = [self._items(first + each) for each in range(self._passes)]
        return loss * (items[number] / sum(items))

    def _items(self, number: int) -> int:
        """Return the number of values of a batch's target that the loss counts."""
        data: Any = self.workload.data
        if callable(getattr(data, "items", None)):
            return int(data.items(self._seed, number))
        target = data(self._seed, number)[self.workload.target_field]
        ignored = getattr(self.workload.loss, "ignore_index", None)
        if ignored is None or target.is_floating_point():
            return int(target.numel())
        return int((target != ignored).sum())

    def _take_gradients(self, number: int, chain: Sequence[int]) -> None:
        """Take the gradients of a pass from its layers, so that no two layers share memory."""
        seen: set[int] = set()
        for place in self._places(chain):
            use = self._uses[place]
            gradients = use.layer.take_gradients()
            memory = {_memory(each) for each in gradients.values()}
            if memory & seen:
                copies = copy.deepcopy(list(gradients.values()))
                gradients = dict(zip(gradients, copies, strict=True))
            seen |= memory
            use.gradients[number] = gradients

    def update(self, step: int) -> None:
        """Step the optimizers of the layers that the step used, and update their statistics."""
        totals: dict[Place, Gradients] = {}
        for place, use in sorted(self._uses.items()):
            if isinstance(use.layer.rule, Frozen):
                continue
            passes = [use.gradients.get(number) for number in range(self._passes)]
            add_up = _halves if self._recipe.steps.reduction == "tree" else _in_order
            totals[place] = add_up(passes) or {}
            if self._recipe.steps.average == "users" and use.passes > 1:
                for gradient in totals[place].values():
                    gradient.div_(use.passes)
        if self._recipe.clip_global_norm:
            self._clip(totals)
        rate = rate_of(self._recipe, step, self.workload.definition.steps)
        for place, total in totals.items():
            use = self._uses[place]
            use.layer.write(step, total, rate, use.options)
            for statistics in use.statistics if self._has_own_norms else ():
                use.layer.fold(statistics)
            self._written.append(use.layer)

    def _clip(self, totals: Mapping[Place, Gradients]) -> None:
        """Clip the global norm of the step's gradients."""
        total = 0.0
        for place, gradients in totals.items():
            layer = self._uses[place].layer
            own = [gradients[name] for name in layer.parameters if name in gradients]
            norm = float(torch.nn.utils.get_total_norm(own)) if own else 0.0
            total += norm * norm
        factor = self._recipe.clip_global_norm / (math.sqrt(total) + 1e-6)
        factor = math.nan if math.isnan(total) else factor
        if not factor >= 1.0:  # also true for a norm of NaN
            for gradients in totals.values():
                for gradient in gradients.values():
                    gradient.mul_(factor)

    def follow(self, step: int, update: MomentumUpdate, streams: Sequence[_Stream]) -> None:
        """Move the layers of a momentum teacher that the step used towards the student's."""
        tau = tau_of(update, step, self.workload.definition.steps)
        for place, use in sorted(self._uses.items()):
            rule = use.layer.rule
            if not isinstance(rule, Follows):
                continue
            source = streams[rule.stream].layers[rule.block, place[1]]
            use.layer.follow(step, source, update, tau)
            for statistics in use.statistics if update.buffers == "own" else ():
                use.layer.fold(statistics)
            self._written.append(use.layer)

    def take_record(self) -> StreamRecord:
        """Return the results of the step, and reset everything except the layers."""
        losses = tuple(map(loss_bits, self._losses))
        layers = {layer.label: layer.digests() for layer in self._written}
        record = StreamRecord(losses, layers, self._audit.take(), tuple(self._remembered))
        self._uses, self._losses, self._written = {}, [], []
        self._earlier, self._is_disturbed, self._remembered = {}, False, []
        return record

    def _tapped_by(self, block: int, number: int, role: TapRole, tapped: Tapped) -> Tensors:
        """Return the outputs of other passes and streams that a block uses, in tap order."""
        found: list[torch.Tensor] = []
        for tap in self._taps:
            if tap.sink[1] != block or tap.role is not role:
                continue
            if self._is_joined and tap.source[0] == self.number:
                continue  # the joint loss receives the outputs of all passes directly
            pairs = [(number, number)] if tap.passes is None else tap.passes
            for source, sink in pairs:
                if sink == number:
                    found += tapped[*tap.source, source]
        return tuple(found)

    def _fields(self, batch: Mapping[str, torch.Tensor], names: Sequence[str]) -> Tensors:
        return tuple(batch[name].to(self._device) for name in names)

    def _autocast(self) -> AbstractContextManager[Any]:
        if self._recipe.precision == "bf16":
            return torch.autocast(self._device.type, dtype=torch.bfloat16)
        return nullcontext()


# Rules that apply to all streams


def start_draws(text: str) -> int:
    """Seed all global random generators from a text; return the seed."""
    number = int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
    torch.manual_seed(number)
    np.random.seed(number % 2**32)
    random.seed(number)
    return number


def _start_backward(key: int, *_: Any) -> None:
    """Seed the draws of a block's backward from the seed of its forward."""
    start_draws(f"{key}/backward")


def rate_of(recipe: Recipe, step: int, steps: int) -> float:
    """Return the learning rate of a step, without the factors of rules and groups."""
    schedule, warmup = recipe.schedule, recipe.warmup_steps
    if isinstance(schedule, GivenCode):
        return recipe.lr * float(schedule.code(step))
    if schedule.startswith("table("):
        pairs = [each.split(":") for each in schedule[len("table(") : -1].split(",")]
        return recipe.lr * [float(factor) for first, factor in pairs if int(first) <= step][-1]
    if step < warmup:
        return recipe.lr * (step + 1) / warmup
    if recipe.restart_steps:
        place, length = step - warmup, recipe.restart_steps
        while place >= length:
            place, length = place - length, length * recipe.restart_factor
        if schedule == "linear":
            return recipe.lr * (1.0 - place / length)
        return recipe.lr * (1.0 + math.cos(math.pi * place / length)) / 2
    progress = (step - warmup) / max(1, steps - warmup)
    if schedule == "linear":
        return recipe.lr * (1.0 - progress)
    if schedule == "cosine":
        return recipe.lr * 0.5 * (1.0 + math.cos(math.pi * progress))
    if schedule == "inverse_sqrt":
        return recipe.lr * math.sqrt(max(1, warmup) / (step - warmup + max(1, warmup)))
    return recipe.lr


def tau_of(update: MomentumUpdate, step: int, steps: int) -> float:
    """Return the factor of a momentum teacher's own weights in a step out of ``steps``."""
    if update.end is None:
        return update.tau
    falls = 0.5 * (1.0 + math.cos(math.pi * step / max(1, steps)))
    return update.end - (update.end - update.tau) * falls


def _in_order(passes: Sequence[Gradients | None]) -> Gradients | None:
    """Return the sum of the passes' gradients, added in pass order."""
    total: Gradients | None = None
    for gradients in passes:
        total = _plus(total, gradients)
    return total


def _halves(passes: Sequence[Gradients | None]) -> Gradients | None:
    """Return the sum of the passes' gradients as a balanced tree."""
    if len(passes) == 1:
        return passes[0]
    half = len(passes) // 2
    return _plus(_halves(passes[:half]), _halves(passes[half:]))


def _plus(left: Gradients | None, right: Gradients | None) -> Gradients | None:
    """Return the sum in place; missing passes and parameters contribute nothing."""
    if left is None or right is None:
        return right if left is None else left
    for name, gradient in right.items():
        if name in left:
            left[name].add_(gradient)
        else:
            left[name] = gradient
    return left


def _memory(tensor: torch.Tensor) -> int:
    dense = tensor._values() if tensor.is_sparse else tensor
    return dense.untyped_storage().data_ptr()


def _identities(module: nn.Module) -> Iterator[int]:
    """Yield numbers that two modules have in common if they share a submodule or memory."""
    yield from map(id, module.modules())
    for tensor in (*module.parameters(), *module.buffers()):
        yield tensor.untyped_storage()._cdata


def _taps_of_sandwiches(workloads: Sequence[Workload]) -> Iterator[Tap]:
    """Yield taps from the first pass of each sandwich, the largest subnet, to the other passes."""
    for number, workload in enumerate(workloads):
        steps = workload.recipe.steps
        if steps.distills:
            end = (StreamId(number), len(workload.space) - 1)
            pairs = tuple((0, other) for other in range(1, steps.trained))
            yield Tap(end, end, TapRole.LESSON, pairs)


def _by_taps(streams: Sequence[_Stream], taps: Sequence[Tap]) -> list[_Stream]:
    """Sort the streams so that each one follows the streams whose outputs it uses."""
    ordered: list[_Stream] = []
    while len(ordered) < len(streams):
        done = {stream.number for stream in ordered}
        for stream in streams:
            needed = {tap.source[0] for tap in taps if tap.sink[0] == stream.number}
            if stream.number not in done and needed <= done | {stream.number}:
                ordered.append(stream)
                break
        else:
            raise NotVerifiable("because streams take outputs of each other")
    return ordered


def states_of(checkpoint: Checkpoint, passes: int) -> dict[str, LayerState]:
    """Return every layer of a checkpoint by label.

    Args:
        checkpoint: a checkpoint at the end of a step.
        passes: number of sequence IDs per step.
    """
    values: dict[str, dict[str, Any]] = defaultdict(dict)
    older: dict[str, dict[int, dict[str, torch.Tensor]]] = defaultdict(lambda: defaultdict(dict))
    for name, raw in checkpoint.tensors.items():
        _, label, rest = name.split("/", 2)
        value = aligned(raw, checkpoint.strides.get(name))
        if rest.startswith("version/"):
            _, version, parameter = rest.split("/", 2)
            older[label][int(version)][parameter] = value
        else:
            values[label][rest] = value
    for name, scalar in checkpoint.scalars.items():
        _, label, rest = name.split("/", 2)
        values[label][rest] = scalar
    found = {}
    for key, newest in checkpoint.versions.items():
        label = key.split("/", 1)[1]
        versions = checkpoint.history.get(key, (newest,))[:-1]
        found[label] = LayerState(
            values[label],
            newest // passes,
            [(version // passes, older[label][version]) for version in versions],
        )
    return found
