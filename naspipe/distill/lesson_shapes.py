"""Whether a student's and its teacher's outputs can be compared: known before a run."""

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
from naspipe.distill.taught import Taught
from naspipe.inputs.ends import network_length
from naspipe.jobs.batches_apart import first_batch
from naspipe.jobs.losses import distilling, is_joined, wants_hidden
from naspipe.jobs.workload import Workload, field_of
from naspipe.losses.top_target import KeepsTop, top_classes
from naspipe.machine.determinism import kept_draws
from naspipe.mixed.edges import MixedEdge

Shapes = list[tuple[int, ...]]
Tensors = tuple[torch.Tensor, ...]


def check_lessons(taught: Taught) -> None:
    """The outputs of both networks must have the same shapes, for a loss that says so.

    Shapes are worked out without memory for tensors, of the first candidates; where a layer cannot
    be computed so, nothing is said. A norm in training mode must see two samples or more.

    Raises:
        ConfigError: for outputs of different shapes, or batches of one sample under such a norm.
    """
    student, *teachers = taught.workloads
    for teacher in teachers:
        if teacher.is_trained:
            continue
        _check_batch_norm(teacher)
        usual = type(student.loss) is torch.nn.CrossEntropyLoss
        if not getattr(student.loss, "same_shapes", usual):
            continue
        own, lesson = _shapes(student), _shapes(teacher)
        if own is not None and lesson is not None and own != lesson:
            raise ConfigError(
                f"teacher: expected outputs as the student has them, of shape "
                f"{' and '.join(map(str, own))}, found {' and '.join(map(str, lesson))}"
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


def _shapes(workload: Workload) -> Shapes | None:
    batch = first_batch(workload)
    try:
        return _forward(workload.space, batch)
    except ConfigError:
        raise
    except Exception:  # whatever is wrong is said when real layers compute
        return None


def _forward(space: Space, batch: Mapping[str, Any]) -> Shapes:
    state: tuple[torch.Tensor, ...] = ()
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
    return [tuple(each.shape) for each in state]


@torch.no_grad()
def check_block(number: int, student: Workload, outputs: Tensors, lessons: Tensors) -> None:
    """A student block must make what its teacher's block makes, and learn by that alone.

    On whatever path: those with one other candidate than the first are tried without memory for
    tensors, as far as layers can be computed so.

    Args:
        number: of the block.
        student: whose space and loss.
        outputs: of its first candidates.
        lessons: what the teacher's block makes of the same batch.

    Raises:
        ConfigError: for outputs of other shapes, or a loss that needs more than the two.
    """
    wanted = _of(lessons)
    inputs = first_batch(student)
    taken = () if student.tapped is None else student.tapped(inputs)
    for found, how in [(_of(outputs), ""), *_other_paths(student.space, taken, inputs)]:
        if found != wanted:
            raise ConfigError(
                f"blockwise: expected the output of student block {number} to have the shape of "
                f"its teacher's, {' and '.join(map(str, wanted))}, found "
                f"{' and '.join(map(str, found))}{how}"
            )
    _check_loss(number, student, inputs, lessons)


def _of(tensors: Sequence[torch.Tensor]) -> Shapes:
    return [tuple(each.shape) for each in tensors]


def _other_paths(
    space: Space, inputs: Tensors, batch: Mapping[str, Any]
) -> Iterator[tuple[Shapes, str]]:
    """Of each path with one other candidate than the first, the shapes of what it makes."""
    try:
        choices = [list(_candidates(space, position, batch)) for position in range(len(space))]
        states = [tuple(each.to("meta") for each in inputs)]
        for (first, _), *_ in choices:
            states.append(_through([first], states[-1]))
    except Exception:  # whatever is wrong is said when real layers compute
        return
    for position, (_, *others) in enumerate(choices):
        behind = [options[0][0] for options in choices[position + 1 :]]
        for module, label in others:
            try:
                found = _through([module, *behind], states[position])
            except Exception:  # likewise
                continue
            yield _of(found), f" of candidate {label}"


def _candidates(
    space: Space, position: int, batch: Mapping[str, Any]
) -> Iterator[tuple[Callable[..., Any], str]]:
    """Without memory, with their batch fields, and what each is called.

    Those of a mixed edge are its own. Of elastic layers the first settings, which agree with one
    another.
    """
    for candidate in range(len(space.blocks[position].candidates)):
        module = sketch(space, position, candidate).eval().to("meta")
        label = space.label(position, candidate)
        fields = [each.to("meta") for each in given_fields(module, space, position, batch)]
        forward = space.blocks[position].forward_of(module, candidate)
        options: list[tuple[Callable[..., Any], str]] = [(forward, label)]
        if isinstance(module, MixedEdge):
            options = [(each, f"{label}/{n}") for n, each in enumerate(module.candidates)]
        yield from ((partial(_called, each, fields), name) for each, name in options)


def _called(forward: Callable[..., Any], fields: Sequence[torch.Tensor], *state: Any) -> Any:
    return forward(*state, *fields)


def given_fields(
    module: torch.nn.Module, space: Space, position: int, batch: Mapping[str, Any]
) -> Tensors:
    """The batch fields that a layer is called with to find the shape of its output.

    A mixed edge gets the input alone, without the kind of the round: it then computes the candidate
    that it has chosen, and no cost.

    Raises:
        ConfigError: when the batch has no such field.
    """
    names = space.fields(position)
    if isinstance(module, MixedEdge):
        names = tuple(name for name in names if name == "input")
    return tuple(field_of(batch, name, 0) for name in names)


def _through(modules: Sequence[Callable[..., Any]], state: Tensors) -> Tensors:
    with torch.device("meta"), kept_draws():
        for module in modules:
            result = module(*state)
            state = result if isinstance(result, tuple) else (result,)
    return state


def _check_loss(number: int, student: Workload, batch: Mapping[str, Any], lessons: Tensors) -> None:
    """Raises ConfigError for a loss that is not of one output and its lesson."""
    loss, name = student.loss, type(student.loss).__name__
    check_costs(student.space, loss)
    more = "the outputs of other passes" if is_joined(loss) else "what the block before it makes"
    if is_joined(loss) or wants_hidden(loss):
        raise ConfigError(
            f"blockwise: expected a loss of block {number} that compares its output with the "
            f"lesson, distill(output, taught), found {name}, which needs {more}"
        )
    compare = distilling(deepcopy(loss) if student.has_loss_layer else loss)
    fields = [field_of(batch, field, 0) for field in student.loss_fields]
    if getattr(loss, "needs_cost", False):
        return
    with (
        users_code(
            f"blockwise: expected the loss of block {number}, {name}, to be called with an output, "
            f"its lesson and its fields {list(student.loss_fields)}, found"
        ),
        torch.enable_grad(),
        kept_draws(),
    ):
        compare(*map(_leaf, lessons), *(each.clone() for each in lessons), *fields)


def _leaf(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone().requires_grad_(tensor.is_floating_point())
