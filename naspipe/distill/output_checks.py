"""Checks, before a run, that the outputs of a student and its teacher can be compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from naspipe.checks.loss import check_costs
from naspipe.checks.sketched import sketch
from naspipe.config.errors import ConfigError
from naspipe.config.space import Space
from naspipe.config.user_code import users_code
from naspipe.inputs.ends import network_length
from naspipe.jobs.batches_apart import first_batch
from naspipe.jobs.losses import distilling, is_joined, wants_hidden
from naspipe.jobs.workload import Workload, field_of
from naspipe.losses.top_target import KeepsTop, top_classes
from naspipe.machine.determinism import kept_draws
from naspipe.mixed.edges import MixedEdge

Shapes = list[tuple[int, ...]]
Tensors = tuple[torch.Tensor, ...]


def check_outputs(workloads: Sequence[Workload]) -> None:
    """Check that student and teachers have outputs of the same shape, if the loss requires it.

    Shapes are computed on the meta device with the first candidates; nothing is checked if a layer
    cannot run there. A norm in training mode must get at least two samples.

    Args:
        workloads: the student, then its teachers.

    Raises:
        ConfigError: for outputs of different shapes, or batches of one sample with such a norm.
    """
    student, *teachers = workloads
    for teacher in teachers:
        if teacher.is_trained:
            continue
        _check_batch_norm(teacher)
        usual = type(student.loss) is torch.nn.CrossEntropyLoss
        if not getattr(student.loss, "same_shapes", usual):
            continue
        own, expected = _network_shapes(student), _network_shapes(teacher)
        if own is not None and expected is not None and own != expected:
            raise ConfigError(
                f"teacher: expected outputs as the student has them, of shape "
                f"{' and '.join(map(str, own))}, found {' and '.join(map(str, expected))}"
            )


def _check_batch_norm(teacher: Workload) -> None:
    batch = first_batch(teacher)
    if not teacher.runs_in_training_mode or len(field_of(batch, "input", 0)) > 1:
        return
    space = teacher.space
    for position, block in enumerate(space.blocks):
        for candidate in range(len(block.candidates)):
            modules = sketch(space, position, candidate).modules()
            if any(isinstance(each, _BatchNorm) for each in modules):
                raise ConfigError(
                    f"momentum: expected micro-batches of two samples or more, as layer "
                    f"{space.label(position, candidate)} normalises over them, found one"
                )


def _network_shapes(workload: Workload) -> Shapes | None:
    space, batch = workload.space, first_batch(workload)
    state: Tensors = ()
    try:
        with torch.no_grad(), torch.device("meta"), kept_draws():
            for position in range(network_length(space)):
                module: Any = sketch(space, position, 0).eval().to("meta")
                fields = [field_of(batch, name, 0).to("meta") for name in space.fields(position)]
                if isinstance(module, KeepsTop):
                    found = module.block(*state, *fields)
                    top_classes(found, module.top)
                    return [tuple(found.shape)]
                result = module(*state, *fields)
                state = result if isinstance(result, tuple) else (result,)
    except ConfigError:
        raise
    except Exception:  # any problem is reported when the real layers run
        return None
    return _shapes(state)


def _shapes(tensors: Sequence[torch.Tensor]) -> Shapes:
    return [tuple(each.shape) for each in tensors]


@torch.no_grad()
def check_block(number: int, student: Workload, outputs: Tensors, targets: Tensors) -> None:
    """Check that a student block has its teacher block's output shapes, and a loss of only these.

    Paths that differ from the first candidates in one block are tried on the meta device, if their
    layers can run there.

    Args:
        number: number of the block.
        student: the workload of the student block.
        outputs: outputs of its first candidates.
        targets: the outputs of the teacher's block for the same batch.

    Raises:
        ConfigError: for outputs of other shapes, or a loss that needs more than these outputs.
    """
    wanted = _shapes(targets)
    inputs = first_batch(student)
    taken = () if student.tapped is None else student.tapped(inputs)
    for found, how in [(_shapes(outputs), ""), *_other_paths(student.space, taken, inputs)]:
        if found != wanted:
            raise ConfigError(
                f"blockwise: expected the output of student block {number} to have the shape of "
                f"its teacher's, {' and '.join(map(str, wanted))}, found "
                f"{' and '.join(map(str, found))}{how}"
            )
    loss, name = student.loss, type(student.loss).__name__
    check_costs(student.space, loss)
    if is_joined(loss) or wants_hidden(loss):
        more = "the outputs of other passes"
        if not is_joined(loss):
            more = "what the block before it makes"
        raise ConfigError(
            f"blockwise: expected a loss of block {number} that compares its output with the "
            f"teacher's, distill(output, taught), found {name}, which needs {more}"
        )
    compare = distilling(deepcopy(loss) if student.has_loss_layer else loss)
    fields = [field_of(inputs, field, 0) for field in student.loss_fields]
    if getattr(loss, "needs_cost", False):
        return
    with (
        users_code(
            f"blockwise: expected the loss of block {number}, {name}, to be called with an output, "
            f"the teacher's and its fields {list(student.loss_fields)}, found"
        ),
        torch.enable_grad(),
        kept_draws(),
    ):
        leaves = [each.clone().requires_grad_(each.is_floating_point()) for each in targets]
        compare(*leaves, *(each.clone() for each in targets), *fields)


def _other_paths(
    space: Space, inputs: Tensors, batch: Mapping[str, Any]
) -> Iterator[tuple[Shapes, str]]:
    """Yield the output shapes of each path that differs from the first candidates in one block."""
    try:
        choices = [list(_candidates(space, position, batch)) for position in range(len(space))]
        states = [tuple(each.to("meta") for each in inputs)]
        for (first, _), *_ in choices:
            states.append(_through([first], states[-1]))
    except Exception:  # any problem is reported when the real layers run
        return
    for position, (_, *others) in enumerate(choices):
        behind = [options[0][0] for options in choices[position + 1 :]]
        for module, label in others:
            try:
                found = _through([module, *behind], states[position])
            except Exception:  # as above
                continue
            yield _shapes(found), f" of candidate {label}"


def _candidates(
    space: Space, position: int, batch: Mapping[str, Any]
) -> Iterator[tuple[Callable[..., Any], str]]:
    """Yield the candidates of a block on the meta device, with their batch fields, and their names.

    The candidates of a mixed edge are listed one by one. Elastic layers have their first settings,
    whose shapes agree with those of the others.
    """
    for candidate in range(len(space.blocks[position].candidates)):
        module = sketch(space, position, candidate).eval().to("meta")
        label = space.label(position, candidate)
        fields = [each.to("meta") for each in given_fields(module, space, position, batch)]
        forward = space.blocks[position].forward_of(module, candidate)
        options: list[tuple[Callable[..., Any], str]] = [(forward, label)]
        if isinstance(module, MixedEdge):
            options = [(each, f"{label}/{n}") for n, each in enumerate(module.candidates)]
        yield from ((partial(_call, each, fields), name) for each, name in options)


def _call(forward: Callable[..., Any], fields: Sequence[torch.Tensor], *state: Any) -> Any:
    return forward(*state, *fields)


def _through(modules: Sequence[Callable[..., Any]], state: Tensors) -> Tensors:
    with torch.device("meta"), kept_draws():
        for module in modules:
            result = module(*state)
            state = result if isinstance(result, tuple) else (result,)
    return state


def given_fields(
    module: torch.nn.Module, space: Space, position: int, batch: Mapping[str, Any]
) -> Tensors:
    """Return the batch fields with which a layer is called to determine the shape of its output.

    A mixed edge gets only the input, without the kind of the round: it then computes its chosen
    candidate, and no cost.

    Raises:
        ConfigError: if the batch has no such field.
    """
    names = space.fields(position)
    if isinstance(module, MixedEdge):
        names = tuple(name for name in names if name == "input")
    return tuple(field_of(batch, name, 0) for name in names)
