"""What is said of a user's space before the start: layers that do not fit, candidates alike."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, replace
from functools import partial
from inspect import Parameter, signature
from itertools import islice
from multiprocessing import current_process
from textwrap import shorten
from types import FunctionType
from typing import Any

import torch
from torch import nn

from naspipe.checks.exportable import export_note
from naspipe.checks.shapes import FirstBlocks, FirstBlocksError, ShapeFollower, Suspected
from naspipe.checks.sketched import SketchedLayers, call_key, sketch, without_addresses
from naspipe.checks.tried_layers import Place, TriedLayers, users_layers
from naspipe.config.blocks import changed_reads
from naspipe.config.errors import (
    ConfigError,
    NaspipeError,
    StageFailedError,
    TransportError,
    UsersCodeError,
)
from naspipe.config.ids import FIRST_STREAM, Subnet
from naspipe.config.rules import Exact, Frozen
from naspipe.config.space import Block, Elastic, Space
from naspipe.config.text import did_you_mean
from naspipe.config.wiring import Tap, TapRole
from naspipe.data.dataset_batches import DatasetBatches
from naspipe.jobs.batches_apart import batch_apart, first_batch
from naspipe.jobs.losses import has_users_class, is_joined
from naspipe.jobs.workload import Workload
from naspipe.machine.determinism import deterministic_torch
from naspipe.machine.forking import done_apart, in_own_thread
from naspipe.plan.costs import first_of_kind
from naspipe.streams.samplers import FILES
from naspipe.worker.blocks.specs import Form, form_of, form_text
from naspipe.worker.job import ValidationPlan
from naspipe.worker.layers.bound_layer import known_edit, obstacle_to_edits, refused
from naspipe.worker.layers.kept_state import HOOKS, TORCHS
from naspipe.worker.layers.layer_store import made_before, shared


def evaluating_note(space: Space, layers: SketchedLayers) -> str | None:
    """A line about the first layer that its factory makes with parts in evaluation mode.

    To be asked for before the layers are called: then they are in training mode.
    """
    for block, each in enumerate(space.blocks):
        for candidate in range(len(each.candidates)):
            module = layers.module(block, candidate)
            parts = module.named_modules() if module is not None else ()
            for name, part in parts:
                if not part.training and next(part.children(), None) is None:
                    what = f"its {type(part).__name__}" + f" ({name})" * bool(name)
                    return (
                        f"layer {space.label(block, candidate)}: its factory leaves {what} in "
                        f"evaluation mode, and a run puts it in training mode, as model.train() "
                        f"does; a class whose train() does nothing stays as it is"
                    )
    return None


_LONGEST = 400
"""Characters of a module that are shown."""
_PLAIN = (int, float, complex, str, bytes, bool, type(None), torch.dtype, torch.Size)


def alike_note(space: Space, layers: SketchedLayers) -> str | None:
    """A line about the first candidates that are alike; None where there are none.

    Those that cannot be made without memory, or whose values could make a difference, are left out.
    """
    twins = first_of_kind(space)
    found = {block: alike for block in set(twins) if (alike := _alike(space, layers, block))}
    if not found:
        return None
    block = min(found)
    *first, last = found[block]
    module = layers.module(block, last)
    others = sum(twin in found for twin in twins) - 1
    more = f" (and so in {others} more block{'s' * (others > 1)})" if others else ""
    shown = shorten(without_addresses(repr(module)), _LONGEST, placeholder=" ...")
    k = _variable(space.blocks[block].candidates[last])
    return (
        f"block {space.labels[block]}: candidates {', '.join(map(str, first))} and {last} are "
        f"alike{more}: each makes {shown}; a factory made in a loop reads the loop's variable when "
        f"it is called, so write lambda {k}={k}: ...; if one layer twice is meant, say "
        f"Block(..., alike=True)"
    )


def changed_reads_note(space: Space) -> str | None:
    """A line about blocks whose factories read what had another value as the block was made."""
    found = [
        (label, changed)
        for label, block in zip(space.labels, space.blocks, strict=True)
        for changed in list(dict.fromkeys(c for f in block.candidates for c in changed_reads(f)))[
            :1
        ]
    ]
    if not found:
        return None
    label, (name, was, now) = found[0]
    others = len(found) - 1
    more = f" (and so in {others} more block{'s' * (others > 1)})" if others else ""
    return (
        f"block {label}: its factories read {name}, which was {was!r:.60} when the block was made "
        f"and is {now!r:.60} now{more}; a factory made in a loop reads the loop's variable when it "
        f"is called, so write lambda {name}={name}: ..."
    )


def _variable(factory: object) -> str:
    """What a factory reads from around it, as the variable of a loop."""
    code = getattr(factory, "__code__", None)
    return code.co_freevars[0] if code and len(code.co_freevars) == 1 else "k"


def _alike(space: Space, layers: SketchedLayers, position: int) -> list[int]:
    """The first candidates of a block that are alike: two or more, or none."""
    block = space.blocks[position]
    if not isinstance(block, Block) or block.alike:
        return []
    described: dict[str, list[tuple[int, nn.Module]]] = {}
    for candidate in range(len(block.candidates)):
        module = layers.module(position, candidate)
        if module is not None:
            described.setdefault(_described(module), []).append((candidate, module))
    found = [
        [number, *(other for other, its in group[place + 1 :] if _are_alike(module, its))]
        for group in described.values()
        for place, (number, module) in enumerate(group)
    ]
    return min((each for each in found if len(each) > 1), default=[])


def _described(module: nn.Module) -> str:
    tensors = [*module.named_parameters(), *module.named_buffers()]
    forms = [(name, tuple(each.shape), each.dtype) for name, each in tensors]
    return f"{without_addresses(repr(module))} {forms}"


def _are_alike(one: nn.Module, other: nn.Module) -> bool:
    """Whether two modules of the same description have the same parts in the same state."""
    parts = zip(one.modules(), other.modules(), strict=False)
    return all(_same_part(*pair) for pair in parts)


def _same_part(one: nn.Module, other: nn.Module) -> bool:
    if type(one) is not type(other) or any(vars(one)[name] for name in HOOKS):
        return False
    is_torchs = type(one).__module__.startswith("torch.nn.")
    if one._buffers and not is_torchs:
        return False  # their values are not known here
    mine, others = (dict(_state(each, is_torchs)) for each in (one, other))
    return _equal(mine, others)


def _state(module: nn.Module, plain_only: bool) -> Iterator[tuple[str, Any]]:
    """What a module keeps beside its parameters, buffers and parts."""
    for name, value in vars(module).items():
        if name not in TORCHS and (not plain_only or isinstance(value, (*_PLAIN, tuple))):
            yield name, value


def _equal(one: Any, other: Any) -> bool:
    """Whether two values are the same as far as can be known."""
    if one is other:
        return True
    if type(one) is not type(other) or isinstance(one, torch.Tensor):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_equal, one, other))
    try:
        if isinstance(one, FunctionType):
            return call_key(one) == call_key(other)
        return bool(one == other)
    except Exception:  # of a type of the user's, or a function that has itself in it
        return False


MOST_TRIED = 4
"""Suspicions that turn out to be none, before the rest is left to the profile."""

MOST_WALKED = 2000
"""Subnets that are followed where not any option may follow any other."""

FOLLOWING_SECONDS, TRYING_SECONDS = 30.0, 60.0
"""In which shapes are followed, and one suspicion is tried; what takes longer is left alone."""


def check_spaces(
    workloads: Sequence[Workload],
    subnets: Sequence[Sequence[Subnet]],
    taps: Sequence[Tap],
    device: str,
    say: Callable[[str], None] = lambda _: None,
    has_budget: bool = False,
) -> list[str]:
    """Every candidate must take what any candidate before it returns, and the loss what comes out.

    This is followed by shapes alone. What does not fit there is tried with real tensors before it
    is refused, so nothing is refused that could run. What cannot be followed is left to the profile
    and the run. All of it happens in processes of their own: what layers and factories keep, draw
    or compute there is gone afterwards.

    Args:
        workloads: of each stream.
        subnets: of each stream; they matter where a file lists them.
        taps: between the streams.
        device: where layers compute in the run; ``cpu``, ``cuda`` or ``cuda:N``.
        say: told in a line what is waited for, where it takes more than a second.
        has_budget: whether layers are swapped.

    Returns:
        Notes, a line each.

    Raises:
        ConfigError: naming the layers that do not fit.
    """
    notes: list[str] = []
    known: set[tuple[object, ...]] = set()
    for number, (workload, drawn) in enumerate(zip(workloads, subnets, strict=True)):
        sampler = workload.definition.sampler
        key = id(workload.space), id(workload.data), id(workload.loss), sampler
        ends = [tap for tap in taps if number in (tap.sink[0], tap.source[0])]
        takes = any(tap.sink[0] == number and tap.role is TapRole.INPUT for tap in ends)
        is_known = workload.space.decisions is None or workload.space.is_elastic
        if key in known or not workload.is_trained or takes or not is_known:
            continue
        known.add(key)
        batch = first_batch(workload)
        obstacle = obstacle_to_edits(
            workload.definition.policy,
            workload.recipe.steps.passes,
            workload.recompute,
            has_budget,
        )
        look = Look(
            workload,
            batch,
            drawn,
            has_plain_loss=not ends,
            is_here=device == "cpu",
            edit_obstacle=obstacle,
            has_budget=has_budget,
        )
        notes += looked(look, say)
        _check_single_item(look, say)
    return notes


def _check_single_item(look: Look, say: Callable[[str], None]) -> None:
    """Where the last batch of an epoch has one item, layers must take that, too: batch
    normalisation in training mode does not.

    Raises:
        ConfigError: naming the layer that does not take it.
    """
    workload = look.workload
    data, definition = workload.data, workload.definition
    if not isinstance(data, DatasetBatches) or current_process().daemon:
        return
    number = data.batches_per_epoch - 1
    last_trained = definition.recipe.steps.batch(definition.num_passes - 1)
    if not 0 < number <= last_trained or len(data.rows(definition.seed, number)) > 1:
        return
    whose = (
        f"batch {number}, the last one of an epoch of {len(data)} items, has a single item; leave "
        f"it out with drop_last=True, or choose another batch_size: "
    )
    with suppress(StageFailedError, TransportError, OSError, UsersCodeError):
        batch = batch_apart(data, definition.seed, number, definition.recipe.threads)
        _check_fits(replace(look, batch=batch, whose=whose), say)


def _check_fits(look: Look, say: Callable[[str], None]) -> Mapping[str, Any]:
    """What :meth:`Look.follow` has found; raises ConfigError for what does not fit."""
    what = f"space {look.workload.space.name}"
    slow = f"following shapes through the candidates of {what}"
    found = done_apart(look.follow, what, FOLLOWING_SECONDS, lambda: say(slow))
    if suspected := found["suspected"]:
        done_apart(lambda go_on: look.compute(suspected, go_on), what, TRYING_SECONDS)
    return found


def looked(look: Look, say: Callable[[str], None]) -> list[str]:
    """Notes; what cannot be looked at is left alone: if anything is wrong, the run says what."""
    what = f"space {look.workload.space.name}"
    if current_process().daemon:
        return []  # which may have no processes of its own
    notes: list[str] = []
    with suppress(StageFailedError, TransportError, OSError):
        found = _check_fits(look, say)
        notes += found["notes"]
        if not look.only_subnets and ((users := found["users"]) or look.has_users_loss):
            done_apart(partial(look.call, users), what, TRYING_SECONDS)
    return notes


@dataclass(frozen=True, slots=True)
class Look:
    """One stream's space; its public methods are called in processes of their own."""

    workload: Workload
    batch: Mapping[str, torch.Tensor]
    """The first."""
    subnets: Sequence[Subnet]
    has_plain_loss: bool
    is_here: bool
    """Whether layers compute in the run where they do here."""
    only_subnets: bool = False
    """Whether these subnets and no others will meet the batch."""
    edit_obstacle: str = ""
    """What of the run does not carry parameters that a forward changes."""
    has_budget: bool = False
    """Whether layers are swapped."""
    whose: str = ""
    """How refusals begin."""

    def follow(self, _: Callable[[], None]) -> dict[str, Any]:
        """Notes, and what seems not to fit; what layers keep of this must not reach real ones."""
        with _quiet():
            layers = SketchedLayers(self.workload.space)
            _check_made_anew(self.workload.space, layers)
            if self.workload.is_trained:
                _check_known_edits(self.workload.space, layers, self.edit_obstacle)
            space, follower = self.workload.space, self._follower(layers)
            in_eval = evaluating_note(space, layers) if self.workload.is_trained else None
            last = layers.module(len(space) - 1, 0)
            suspected = islice(self._suspected(follower, last), MOST_TRIED)
            tries = [self._told(each, layers) for each in suspected]
            users = users_layers(space, layers) if self.workload.is_trained else []
            others = (
                alike_note(space, layers), changed_reads_note(space), export_note(space, layers)
            )  # fmt: skip
            notes = filter(None, (*others, in_eval))
            return {"suspected": tries, "notes": list(notes), "users": users}

    def compute(
        self, suspected: Sequence[Mapping[str, Any]], go_on: Callable[[], None]
    ) -> dict[str, Any]:
        """Raises ConfigError for what does not fit with real layers and tensors either."""
        threads = self.workload.recipe.threads

        def tried() -> dict[str, Any]:
            for each in suspected:
                go_on()
                self._try(**each)
            return {}

        with _quiet(), deterministic_torch(threads):
            return in_own_thread(threads, tried)

    def call(self, users: Sequence[Place], go_on: Callable[[], None]) -> dict[str, Any]:
        """Raises ConfigError for a layer or a loss that a run cannot carry."""
        workload, threads = self.workload, self.workload.recipe.threads
        wanted = {(block, candidate) for block, candidate in users}
        tried = TriedLayers(
            workload, self.batch, wanted, self.has_users_loss, self.edit_obstacle, self.has_budget
        )
        with _quiet(), deterministic_torch(threads):
            in_own_thread(threads, lambda: tried.follow(self._chains(), go_on))
        return {}

    @property
    def has_users_loss(self) -> bool:
        """Whether the loss is a function or a class of the user's."""
        return callable(self.workload.loss) and has_users_class(self.workload.loss)

    def _chains(self) -> Iterator[Sequence[int]]:
        """Subnets that have every candidate, where any may follow any other; or the first drawn."""
        blocks = self.workload.space.blocks
        if self._is_listed:
            yield from (subnet.chain for subnet in self.subnets[:MOST_WALKED] if subnet.chain)
            return
        for number in range(max(each.num_options for each in blocks)):
            yield [number % each.num_options for each in blocks]

    @property
    def _is_listed(self) -> bool:
        """Whether not any candidate may follow any other."""
        workload = self.workload
        from_file = workload.definition.sampler.partition(":")[0] in FILES
        is_drawn = workload.make_strategy is not None
        return self.only_subnets or workload.space.is_elastic or (from_file and not is_drawn)

    def _follower(self, layers: SketchedLayers) -> ShapeFollower:
        workload = self.workload
        given = workload.tapped(self.batch) if workload.tapped else ()
        tensors = {name: each for name, each in self.batch.items() if torch.is_tensor(each)}
        fields: dict[str, Form] = {name: form_of([each]) for name, each in tensors.items()}
        trains = workload.runs_in_training_mode
        return ShapeFollower(workload.space, layers, form_of(given), fields, trains)

    def _suspected(self, follower: ShapeFollower, last: nn.Module | None) -> Iterator[Suspected]:
        workload = self.workload
        sampler = workload.definition.sampler
        if self._is_listed:
            chains = (subnet.chain for subnet in self.subnets if subnet.chain)
            yield from follower.walk(islice(chains, MOST_WALKED))
        elif workload.make_strategy is None or sampler.startswith(("evolution", "nni:")):
            yield from follower.spread()
        if self.has_plain_loss and _is_plain(workload):
            yield from follower.ends(workload.objective_of(last), workload.loss_fields)

    def _told(self, suspected: Suspected, layers: SketchedLayers) -> dict[str, Any]:
        """For another process; see :meth:`_try`."""
        good = suspected.good
        return {
            "said": self.whose + self._said(layers, suspected),
            "bad": suspected.chain(suspected.bad),
            "good": None if good is None else suspected.chain(good),
            "is_loss": suspected.candidate is None,
        }

    def _said(self, layers: SketchedLayers, suspected: Suspected) -> str:
        """How the refusal begins; what the layer raised comes behind it."""
        workload, space = self.workload, self.workload.space
        bad, good, parting = suspected.bad, suspected.good, suspected.parting
        if suspected.candidate is None:
            who = f"the loss ({getattr(workload.loss, '__name__', type(workload.loss).__name__)})"
        else:
            who = _called(space, layers, suspected.block, suspected.candidate)
        if good is not None and parting is not None:
            forms = [form_text(each.made[parting]) for each in (bad, good)]
            return (
                f"block {space.labels[parting]}: candidate {bad.path[parting]} returns {forms[0]}, "
                f"candidate {good.path[parting]} {forms[1]}; expected one shape, as {who} takes "
                f"only the second, found"
            )
        if bad.path:
            source = f"what {_called(space, layers, len(bad.path) - 1, bad.path[-1])} returns"
            return f"{who}: expected to take {source}, {form_text(bad.form)}, found"
        names = space.fields(0)
        fields = [self.batch[name] for name in names]
        given = form_text((*bad.form, *form_of(fields)))
        if any(each.dtype == torch.float64 for each in fields):
            given += " (as of NumPy; .float() makes float32)"
        return f"{who}: expected to take the batch's {' and '.join(names)}, {given}, found"

    def _try(
        self, said: str, bad: Sequence[int], good: Sequence[int] | None, is_loss: bool
    ) -> None:
        """Where it fails here it might not fail elsewhere, unless what fits works here, too."""
        first = FirstBlocks(self.workload, self.batch)
        try:
            if not self.is_here:
                if good is None:
                    return
                first.compute(good, said, is_loss)
        except NaspipeError:
            return
        with suppress(FirstBlocksError):
            first.compute(bad, said, is_loss)


def _check_made_anew(space: Space, layers: SketchedLayers) -> None:
    """No two layers may share a tensor: other stages would not see what is written.

    And whoever calls a factory twice must have two layers: a run makes each as it begins.
    """
    pairs = [
        (block, candidate)
        for block, each in enumerate(space.blocks)
        for candidate in range(len(each.candidates))
    ]
    handed_out = [(*pair, what) for pair in pairs if (what := layers.handed_out(*pair))]
    for what, owner, other in layers.shared:
        raise shared(what, space.label(*owner), space.label(*other))
    for block, candidate, what in handed_out:
        if not isinstance(space.blocks[block].rule, Frozen):
            raise made_before(_called(space, layers, block, candidate), what)


def _check_known_edits(space: Space, layers: SketchedLayers, obstacle: str) -> None:
    """Refuse parts of torch's that change their weights, where the run does not carry that."""
    for block, each in enumerate(space.blocks):
        against = obstacle if isinstance(each.rule, Exact) else f"rule {each.rule}"
        for candidate in range(len(each.candidates)) if against else ():
            module = layers.module(block, candidate)
            if module is not None and (edited := known_edit(module)):
                label = f"layer {space.label(block, candidate)} ({type(module).__name__})"
                raise refused(label, edited, against)


def _is_plain(workload: Workload) -> bool:
    """Whether the loss is called with the output and fields of a batch, and nothing else."""
    return (
        callable(workload.loss)
        and not is_joined(workload.loss)
        and not workload.recipe.steps.distills
        and not workload.lesson_fields
        and not workload.objectives
    )


def _called(space: Space, layers: SketchedLayers, block: int, option: int) -> str:
    module = layers.module(block, space.blocks[block].candidate(option))
    kind = f" ({type(module).__name__})" if module is not None else ""
    return f"layer {space.option_label(block, option)}{kind}"


@contextmanager
def _quiet() -> Iterator[None]:
    """What is printed and warned of here comes again in the run."""
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


def check_held_out(validation: ValidationPlan | None, device: str) -> None:
    """The subnets that a run is judged by must take its first held-out batch.

    It is followed by its shapes, as the first batch of the training is. One of the same shapes
    and types, whatever its number of items, needs no look.

    Args:
        validation: of a stream; None where it is not judged.
        device: where layers compute in the run.

    Raises:
        ConfigError: naming the layer that does not take it.
    """
    if validation is None:
        return
    evaluation = validation.evaluation
    workload, seed = evaluation.workload, evaluation.workload.definition.seed
    batch = batch_apart(evaluation.held_out, seed, 0)
    if workload.tapped or _items(batch) == _items(batch_apart(workload.data, seed, 0)):
        return
    space = workload.space
    chains = [space.chain(choices) for choices in validation.choices]
    plain = replace(workload, is_trained=False, is_taught=False)
    look = Look(
        plain,
        batch,
        [space.subnet(FIRST_STREAM, number, chain) for number, chain in enumerate(chains)],
        has_plain_loss=not evaluation.probe and plain.judged_fields == plain.loss_fields,
        is_here=device == "cpu",
        only_subnets=True,
        whose="held-out data: ",
    )
    looked(look, lambda _: None)


def _items(batch: Mapping[str, Any]) -> dict[str, tuple[torch.dtype, torch.Size]]:
    """Of each field, the type and the shape of one item."""
    tensors = {name: each for name, each in batch.items() if torch.is_tensor(each)}
    return {name: (each.dtype, each.shape[1:]) for name, each in tensors.items()}


def check_settings(space: Space) -> None:
    """Each setting must be one that the layer's module, or its ``apply``, is called with.

    Raises:
        ConfigError: for the first that is not.
    """
    for position, block in enumerate(space.blocks):
        if isinstance(block, Elastic):
            _check(block, sketch(space, position, 0))


def _check(block: Elastic, module: nn.Module) -> None:
    kind = type(module).__name__
    if block.apply is None:
        who, known = f"its {kind}", _taken(module, module.forward)
    else:
        who = f"its apply={getattr(block.apply, '__name__', type(block.apply).__name__)}"
        known = _keywords(block.apply)
    if known is None:
        return
    for setting in block.settings:
        if setting not in known:
            raise ConfigError(
                f"elastic layer {block.name}: expected settings that {who} takes, "
                f"{', '.join(known) or 'which takes none'}, found {setting!r}"
                f"{did_you_mean(setting, known)}"
            )
    if block.apply is None and hasattr(module, "takes"):
        for setting in known:
            if setting not in block.settings:
                raise ConfigError(
                    f"elastic layer {block.name}: expected values of every setting that its "
                    f"{kind} takes, found none of {setting!r}"
                )


def _taken(module: nn.Module, forward: Any) -> Sequence[str] | None:
    """The settings of a layer of naspipe's, which says them, or those of any other."""
    said: Sequence[str] | None = getattr(module, "takes", None)
    return _keywords(forward) if said is None else said


def _keywords(function: Any) -> Sequence[str] | None:
    """What a function may be called with by name; None where that is anything, or not known."""
    try:
        parameters = signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(each.kind is Parameter.VAR_KEYWORD for each in parameters):
        return None
    named = (Parameter.KEYWORD_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    return [each.name for each in parameters if each.kind in named]
