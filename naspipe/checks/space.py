"""Check a user's space before the start: refuse layers that do not fit, and report others.

Shapes are followed through the candidates on the meta device. A layer that does not fit is tried
with real tensors before it is refused, so that no space is refused that could run. All of this is
done in other processes, so that state of layers and factories, and random draws, have no effect on
the run.
"""

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
from naspipe.checks.shapes import FirstBlocksError, ShapeFollower, Suspected, compute_first
from naspipe.checks.sketched import SketchedLayers, call_key, sketch, without_addresses
from naspipe.checks.tried_layers import Place, TriedLayers, users_layers
from naspipe.config.blocks import Block, Elastic, changed_reads
from naspipe.config.errors import (
    ConfigError,
    NaspipeError,
    StageFailedError,
    TransportError,
    UsersCodeError,
)
from naspipe.config.ids import FIRST_STREAM, Subnet
from naspipe.config.rules import Exact, Frozen
from naspipe.config.space import Space
from naspipe.config.text import did_you_mean
from naspipe.config.wiring import Tap, TapRole
from naspipe.data.dataset_batches import DatasetBatches
from naspipe.jobs.batches_apart import batch_apart, first_batch
from naspipe.jobs.losses import HOOKS, TORCHS, has_users_class, is_joined
from naspipe.jobs.workload import Workload
from naspipe.machine.determinism import deterministic_torch
from naspipe.machine.forking import done_apart, in_own_thread
from naspipe.plan.costs import first_of_kind
from naspipe.streams.samplers import FILES
from naspipe.worker.blocks.specs import Form, form_of, form_text
from naspipe.worker.job import ValidationPlan
from naspipe.worker.layers.bound_layer import known_edit, obstacle_to_edits, refused
from naspipe.worker.layers.layer_store import made_before, shared

# Notes


def evaluating_note(space: Space, layers: SketchedLayers) -> str | None:
    """Return a line about the first layer that its factory makes with parts in evaluation mode.

    Call this before the layers are called, because that puts them in training mode.
    """
    for block, candidate in layers.places():
        module = layers.module(block, candidate)
        for name, part in module.named_modules() if module is not None else ():
            if not part.training and next(part.children(), None) is None:
                what = f"its {type(part).__name__}" + f" ({name})" * bool(name)
                return (
                    f"layer {space.label(block, candidate)}: its factory leaves {what} in "
                    f"evaluation mode, and a run puts it in training mode, as model.train() "
                    f"does; a class whose train() does nothing stays as it is"
                )
    return None


_LONGEST = 400
"""Maximum number of characters of a module in a message."""
_PLAIN = (int, float, complex, str, bytes, bool, type(None), torch.dtype, torch.Size)


def alike_note(space: Space, layers: SketchedLayers) -> str | None:
    """Return a line about the first candidates that are equal.

    Candidates that cannot be made on the meta device, and those whose buffers' values could differ,
    are ignored.
    """
    twins = first_of_kind(space)
    found = {block: alike for block in set(twins) if (alike := _alike(space, layers, block))}
    if not found:
        return None
    block = min(found)
    *first, last = found[block]
    more = _in_others(sum(twin in found for twin in twins) - 1)
    shown = without_addresses(repr(layers.module(block, last)))
    code = getattr(space.blocks[block].candidates[last], "__code__", None)
    k = code.co_freevars[0] if code and len(code.co_freevars) == 1 else "k"
    return (
        f"block {space.labels[block]}: candidates {', '.join(map(str, first))} and {last} are "
        f"alike{more}: each makes {shorten(shown, _LONGEST, placeholder=' ...')}; a factory made "
        f"in a loop reads the loop's variable when it is called, so write lambda {k}={k}: ...; if "
        f"one layer twice is meant, say Block(..., alike=True)"
    )


def changed_reads_note(space: Space) -> str | None:
    """Return a line about blocks whose factories read a variable that has changed since."""
    found = []
    for label, block in zip(space.labels, space.blocks, strict=True):
        changed = [each for factory in block.candidates for each in changed_reads(factory)]
        found += [(label, *each) for each in changed[:1]]
    if not found:
        return None
    label, name, was, now = found[0]
    return (
        f"block {label}: its factories read {name}, which was {was!r:.60} when the block was made "
        f"and is {now!r:.60} now{_in_others(len(found) - 1)}; a factory made in a loop reads the "
        f"loop's variable when it is called, so write lambda {name}={name}: ..."
    )


def _in_others(blocks: int) -> str:
    return f" (and so in {blocks} more block{'s' * (blocks > 1)})" if blocks else ""


def _alike(space: Space, layers: SketchedLayers, position: int) -> list[int]:
    """Return the first equal candidates of a block: two or more, or none."""
    block = space.blocks[position]
    if not isinstance(block, Block) or block.alike:
        return []
    described: dict[str, list[tuple[int, nn.Module]]] = {}
    for candidate in range(len(block.candidates)):
        module = layers.module(position, candidate)
        if module is not None:
            tensors = [*module.named_parameters(), *module.named_buffers()]
            forms = [(name, tuple(each.shape), each.dtype) for name, each in tensors]
            text = f"{without_addresses(repr(module))} {forms}"
            described.setdefault(text, []).append((candidate, module))
    found = [
        [number, *(other for other, its in group[place + 1 :] if _are_alike(module, its))]
        for group in described.values()
        for place, (number, module) in enumerate(group)
    ]
    return min((each for each in found if len(each) > 1), default=[])


def _are_alike(one: nn.Module, other: nn.Module) -> bool:
    """Return True if two modules of the same description have the same parts in the same state."""
    return all(_same_part(*pair) for pair in zip(one.modules(), other.modules(), strict=False))


def _same_part(one: nn.Module, other: nn.Module) -> bool:
    if type(one) is not type(other) or any(vars(one)[name] for name in HOOKS):
        return False
    is_torchs = type(one).__module__.startswith("torch.nn.")
    if one._buffers and not is_torchs:
        return False  # their values are unknown on the meta device
    mine, others = (
        {
            name: value
            for name, value in vars(each).items()
            if name not in TORCHS and (not is_torchs or isinstance(value, (*_PLAIN, tuple)))
        }
        for each in (one, other)
    )
    return _equal(mine, others)


def _equal(one: Any, other: Any) -> bool:
    """Return True if two values are known to be the same."""
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
    except Exception:  # from a user's type, or a function that refers to itself
        return False


# Layers that do not fit

MOST_TRIED = 4
"""Maximum number of suspected layers that are tried; others are left to the profile."""

MOST_WALKED = 2000
"""Maximum number of subnets that are followed if some options may not follow some others."""

FOLLOWING_SECONDS, TRYING_SECONDS = 30.0, 60.0
"""Time limits for following shapes and for trying suspected layers; slower checks are skipped."""


def check_spaces(
    workloads: Sequence[Workload],
    subnets: Sequence[Sequence[Subnet]],
    taps: Sequence[Tap],
    device: str,
    say: Callable[[str], None] = lambda _: None,
    has_budget: bool = False,
) -> list[str]:
    """Check that candidates accept all outputs of preceding ones, and the loss the final output.

    Layers that cannot be followed are left to the profile and the run.

    Args:
        workloads: the workload of each stream.
        subnets: the subnets of each stream, used if a file lists them.
        taps: taps between the streams.
        device: where layers compute in the run; ``cpu``, ``cuda`` or ``cuda:N``.
        say: called with a progress line if a check takes more than a second.
        has_budget: True if layers are swapped.

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
        look = Look(
            workload,
            first_batch(workload),
            drawn,
            has_plain_loss=not ends,
            is_here=device == "cpu",
            edit_obstacle=obstacle_to_edits(
                workload.definition.policy,
                workload.recipe.steps.passes,
                workload.recompute,
                has_budget,
            ),
            has_budget=has_budget,
        )
        notes += looked(look, say)
        _check_single_item(look, say)
    return notes


def check_held_out(validation: ValidationPlan | None, device: str) -> None:
    """Check that the subnets of a validation accept its first held-out batch.

    A batch whose items have the shapes and dtypes of the first training batch is not checked.

    Args:
        validation: the validation of a stream, or None.
        device: where layers compute in the run.
    """
    if validation is None:
        return
    evaluation = validation.evaluation
    workload, seed = evaluation.workload, evaluation.workload.definition.seed
    batch = batch_apart(evaluation.held_out, seed, 0)

    def items(batch: Mapping[str, Any]) -> dict[str, tuple[torch.dtype, torch.Size]]:
        tensors = {name: each for name, each in batch.items() if torch.is_tensor(each)}
        return {name: (each.dtype, each.shape[1:]) for name, each in tensors.items()}

    if workload.tapped or items(batch) == items(batch_apart(workload.data, seed, 0)):
        return
    chains = map(workload.space.chain, validation.choices)
    plain = replace(workload, is_trained=False, is_taught=False)
    look = Look(
        plain,
        batch,
        [workload.space.subnet(FIRST_STREAM, number, chain) for number, chain in enumerate(chains)],
        has_plain_loss=not evaluation.probe and plain.judged_fields == plain.loss_fields,
        is_here=device == "cpu",
        only_subnets=True,
        whose="held-out data: ",
    )
    looked(look, lambda _: None)


def _check_single_item(look: Look, say: Callable[[str], None]) -> None:
    """Check that layers accept the last batch of an epoch if it has one item.

    Batch normalization in training mode does not.
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


def looked(look: Look, say: Callable[[str], None]) -> list[str]:
    """Check a space and return notes; if the check itself fails, errors are left to the run."""
    if current_process().daemon:
        return []  # daemons may not start processes
    notes: list[str] = []
    with suppress(StageFailedError, TransportError, OSError):
        found = _check_fits(look, say)
        notes += found["notes"]
        if not look.only_subnets and ((users := found["users"]) or look.has_users_loss):
            done_apart(partial(look.call, users), look.what, TRYING_SECONDS)
    return notes


def _check_fits(look: Look, say: Callable[[str], None]) -> Mapping[str, Any]:
    """Return the result of :meth:`Look.follow`; raise ConfigError for layers that do not fit."""
    slow = f"following shapes through the candidates of {look.what}"
    found = done_apart(look.follow, look.what, FOLLOWING_SECONDS, lambda: say(slow))
    if suspected := found["suspected"]:
        done_apart(lambda go_on: look.compute(suspected, go_on), look.what, TRYING_SECONDS)
    return found


@dataclass(frozen=True, slots=True)
class Look:
    """Checks one stream's space; ``follow``, ``compute`` and ``call`` run in separate processes."""

    workload: Workload
    batch: Mapping[str, torch.Tensor]
    """The first batch."""
    subnets: Sequence[Subnet]
    has_plain_loss: bool
    is_here: bool
    """True if layers also compute on this device in the run."""
    only_subnets: bool = False
    """True if only these subnets will use the batch."""
    edit_obstacle: str = ""
    """The feature of the run that does not support forwards that change parameters."""
    has_budget: bool = False
    """True if layers are swapped."""
    whose: str = ""
    """Start of error messages."""

    @property
    def what(self) -> str:
        return f"space {self.workload.space.name}"

    def follow(self, _: Callable[[], None]) -> dict[str, Any]:
        """Return notes, layers that seem not to fit, and layers with user code."""
        workload, space = self.workload, self.workload.space
        with _quiet():
            layers = SketchedLayers(space)
            _check_made_anew(space, layers)
            if workload.is_trained:
                _check_known_edits(space, layers, self.edit_obstacle)
            in_eval = evaluating_note(space, layers) if workload.is_trained else None
            tries = [
                {
                    "said": self.whose + self._said(layers, each),
                    "bad": each.chain(each.bad),
                    "good": None if each.good is None else each.chain(each.good),
                    "is_loss": each.candidate is None,
                }
                for each in islice(self._suspected(layers), MOST_TRIED)
            ]
            users = users_layers(space, layers) if workload.is_trained else []
            notes = [alike_note(space, layers), changed_reads_note(space)]
            notes += [export_note(space, layers), in_eval]
        return {"suspected": tries, "notes": list(filter(None, notes)), "users": users}

    def compute(
        self, suspected: Sequence[Mapping[str, Any]], go_on: Callable[[], None]
    ) -> dict[str, Any]:
        """Raise ConfigError for suspected layers that also fail with real tensors."""

        def tried() -> dict[str, Any]:
            for each in suspected:
                go_on()
                self._try(**each)
            return {}

        threads = self.workload.recipe.threads
        with _quiet(), deterministic_torch(threads):
            return in_own_thread(threads, tried)

    def call(self, users: Sequence[Place], go_on: Callable[[], None]) -> dict[str, Any]:
        """Raise ConfigError for a layer or a loss that a run does not support."""
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
        return callable(self.workload.loss) and has_users_class(self.workload.loss)

    def _chains(self) -> Iterator[Sequence[int]]:
        """Yield subnets that cover every option, or the first listed subnets."""
        blocks = self.workload.space.blocks
        if self._is_listed:
            yield from (subnet.chain for subnet in self.subnets[:MOST_WALKED] if subnet.chain)
            return
        for number in range(max(each.num_options for each in blocks)):
            yield [number % each.num_options for each in blocks]

    @property
    def _is_listed(self) -> bool:
        """True if some candidates may not follow some others."""
        workload = self.workload
        from_file = workload.definition.sampler.partition(":")[0] in FILES
        is_drawn = workload.make_strategy is not None
        return self.only_subnets or workload.space.is_elastic or (from_file and not is_drawn)

    def _suspected(self, layers: SketchedLayers) -> Iterator[Suspected]:
        workload, loss = self.workload, self.workload.loss
        tensors = {name: each for name, each in self.batch.items() if torch.is_tensor(each)}
        fields: dict[str, Form] = {name: form_of([each]) for name, each in tensors.items()}
        given = form_of(workload.tapped(self.batch) if workload.tapped else ())
        follower = ShapeFollower(
            workload.space, layers, given, fields, workload.runs_in_training_mode
        )
        sampler = workload.definition.sampler
        if self._is_listed:
            chains = (subnet.chain for subnet in self.subnets if subnet.chain)
            yield from follower.walk(islice(chains, MOST_WALKED))
        elif workload.make_strategy is None or sampler.startswith(("evolution", "nni:")):
            yield from follower.spread()
        takes_fields_alone = (
            callable(loss)
            and not is_joined(loss)
            and not workload.recipe.steps.distills
            and not workload.lesson_fields
            and not workload.objectives
        )
        if self.has_plain_loss and takes_fields_alone:
            last = layers.module(len(workload.space) - 1, 0)
            yield from follower.ends(workload.objective_of(last), workload.loss_fields)

    def _said(self, layers: SketchedLayers, suspected: Suspected) -> str:
        """Return the start of the error message; the layer's error follows it."""
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
        """Try a suspected layer, but on another device than the run's only if ``good`` works here.

        Otherwise, a failure could be caused by the device.
        """
        first = partial(compute_first, self.workload, self.batch)
        try:
            if not self.is_here:
                if good is None:
                    return
                first(good, said, is_loss)
        except NaspipeError:
            return
        with suppress(FirstBlocksError):
            first(bad, said, is_loss)


def _check_made_anew(space: Space, layers: SketchedLayers) -> None:
    """Check that no two layers share a tensor, because other stages would not see its updates.

    A factory must make a new layer on every call, because a run makes each layer anew.
    """
    handed_out = [(place, what) for place in layers.places() if (what := layers.handed_out(*place))]
    for what, owner, other in layers.shared:
        raise shared(what, space.label(*owner), space.label(*other))
    for (block, candidate), what in handed_out:
        if not isinstance(space.blocks[block].rule, Frozen):
            raise made_before(_called(space, layers, block, candidate), what)


def _check_known_edits(space: Space, layers: SketchedLayers, obstacle: str) -> None:
    """Refuse torch modules that change their weights, if the run does not support that."""
    for block, candidate in layers.places():
        rule = space.blocks[block].rule
        against = obstacle if isinstance(rule, Exact) else f"rule {rule}"
        module = layers.module(block, candidate) if against else None
        if module is not None and (edited := known_edit(module)):
            label = f"layer {space.label(block, candidate)} ({type(module).__name__})"
            raise refused(label, edited, against)


def _called(space: Space, layers: SketchedLayers, block: int, option: int) -> str:
    module = layers.module(block, space.blocks[block].candidate(option))
    kind = f" ({type(module).__name__})" if module is not None else ""
    return f"layer {space.option_label(block, option)}{kind}"


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress output and warnings, which the run repeats."""
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


# Settings of elastic layers


def check_settings(space: Space) -> None:
    """Check that the layer's module, or its ``apply``, accepts each setting."""
    for position, block in enumerate(space.blocks):
        if not isinstance(block, Elastic):
            continue
        module = sketch(space, position, 0)
        kind = type(module).__name__
        if block.apply is not None:
            who = f"its apply={getattr(block.apply, '__name__', type(block.apply).__name__)}"
            known = _keywords(block.apply)
        else:
            who = f"its {kind}"  # naspipe's own layers list their settings
            said: Sequence[str] | None = getattr(module, "takes", None)
            known = _keywords(module.forward) if said is None else said
        if known is None:
            continue
        for setting in block.settings:
            if setting not in known:
                raise ConfigError(
                    f"elastic layer {block.name}: expected settings that {who} takes, "
                    f"{', '.join(known) or 'which takes none'}, found {setting!r}"
                    f"{did_you_mean(setting, known)}"
                )
        for setting in known if block.apply is None and hasattr(module, "takes") else ():
            if setting not in block.settings:
                raise ConfigError(
                    f"elastic layer {block.name}: expected values of every setting that its "
                    f"{kind} takes, found none of {setting!r}"
                )


def _keywords(function: Any) -> Sequence[str] | None:
    """Return the keywords that a function takes; None if it takes any, or if unknown."""
    try:
        parameters = signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(each.kind is Parameter.VAR_KEYWORD for each in parameters):
        return None
    named = (Parameter.KEYWORD_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    return [each.name for each in parameters if each.kind in named]
