"""Blockwise distillation (Pipe-BD, DATE'23): a frozen teacher's blocks, each taught to one student.

Student block i learns what the teacher's block i makes of the teacher's output i - 1, and nothing
else. No gradient leaves a block. Each student block is a stream of its own, so nobody waits for an
optimizer step of another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from naspipe.config.blocks import CopyOf
from naspipe.config.errors import ConfigError
from naspipe.config.ids import StreamId
from naspipe.config.rules import Frozen
from naspipe.config.space import Block, Space
from naspipe.config.user_code import users_code
from naspipe.config.wiring import Tap, TapRole
from naspipe.distill.lesson_shapes import check_block, given_fields
from naspipe.distill.taught import Taught
from naspipe.distill.teachers import check_teaching, weights_digest
from naspipe.inputs.ends import chain, with_loss_layer
from naspipe.jobs.batches_apart import batch_apart, first_batch
from naspipe.jobs.workload import Batches, Workload, field_of

DECOUPLED, BARRIER, APART = "decoupled", "barrier", "apart"
RELAYS = {
    DECOUPLED: "free",
    BARRIER: "pairs",
    APART: "packed",
}
"""How blocks get the teacher's outputs, and where they then are unless the user says otherwise:
handed on, and nobody waits for a student; handed on, and no block begins a step before all are
through the one before (for comparison); or every student has the teacher's blocks up to its own
for itself (layerwise scheduling, for comparison)."""


def teacher_folder(block: int) -> str:
    """Of what is recorded of a block of the teacher."""
    return f"teacher-{block}"


class BlockLoss:
    """The mean square of the difference to the teacher's output, over all elements."""

    fields = ()

    def distill(self, output: torch.Tensor, taught: torch.Tensor) -> torch.Tensor:
        """Both of one shape."""
        return functional.mse_loss(output, taught)


def folder(block: int) -> str:
    """Of what is recorded of a student block."""
    return f"block-{block}"


def blockwise(
    teachers: Sequence[nn.Module],
    students: Sequence[Space | nn.Module],
    data: Batches,
    define: Callable[[Space, Batches, Any, int], Workload],
    *,
    loss: Any = None,
    last_loss: Any = None,
    relay: str = DECOUPLED,
    window: int,
) -> Taught:
    """The streams of a blockwise distillation: one for each student block, then the teacher's.

    Args:
        teachers: the teacher's blocks, with their weights.
        students: of each of them, a chain of choice blocks, or modules in their place.
        data: (seed, number) -> named tensors.
        define: makes a workload of a space, data, a loss and the number of the block.
        loss: of every student block but the last; :class:`BlockLoss` by default.
        last_loss: of the last one; by default cross entropy against the teacher's softmax.
        relay: one of :data:`RELAYS`.
        window: steps that a block of the teacher may be ahead of those who take its output.

    Raises:
        ConfigError: for another number of students, outputs of another shape than the teacher's,
            a loss that needs more than these, a teacher that changes its inputs or itself, or
            another way of relaying.
    """
    _check_asked(len(teachers), len(students), relay, window)
    blocks = [deepcopy(each).eval().requires_grad_(False) for each in teachers]
    with users_code("data: expected a batch from data(seed, 0), found"):
        batch = batch_apart(data, 0, 0)
    check_teaching(blocks, field_of(batch, "input", 0))
    digest = _digest(blocks)
    last = len(blocks) - 1
    losses = [*[loss or BlockLoss()] * last, last_loss or nn.CrossEntropyLoss()]
    own = [
        _taught(define(student_space(student, number), data, losses[number], number), digest)
        for number, student in enumerate(students)
    ]
    own = [_fitting(number, each, blocks) for number, each in enumerate(own)]
    firsts = [number if relay != APART else 0 for number in range(len(blocks))]
    teaching = []
    for end, first in enumerate(firsts):
        stream = _teaching(blocks[: end + 1], first, own[0], digest)
        before = blocks[:first]
        teaching.append(_behind(before, stream, _outputs(before, stream)))
    under_way = (1 if relay == BARRIER else window) * own[0].recipe.steps.passes
    own = [replace(each, window=under_way) for each in own]
    lingers = relay == BARRIER
    teaching = [replace(each, window=under_way, lingers=lingers) for each in teaching]
    numbers = range(len(blocks))
    places = (*map(folder, numbers), *map(teacher_folder, numbers))
    lengths = [len(each.space) for each in own]
    return Taught((*own, *teaching), tuple(_taps(lengths, firsts)), places)


def _check_asked(teachers: int, students: int, relay: str, window: int) -> None:
    if relay not in RELAYS:
        raise ConfigError(f"relay: expected {' or '.join(RELAYS)}, found {relay!r:.80}")
    if window < 1:
        raise ConfigError(f"window: expected 1 step or more, found {window}")
    if teachers != students or not teachers:
        raise ConfigError(
            f"blockwise: expected a student for each block of the teacher, found {students} for "
            f"{teachers}"
        )


def _digest(blocks: Sequence[nn.Module]) -> str:
    """Of the whole teacher."""
    return weights_digest(
        Space("teacher", [Block([CopyOf(each)], rule=Frozen()) for each in blocks])
    )


def _taught(student: Workload, digest: str) -> Workload:
    student = with_loss_layer(student)
    definition = replace(student.definition, teacher=digest)
    return replace(student, definition=definition, is_taught=True)


def _fitting(number: int, student: Workload, blocks: Sequence[nn.Module]) -> Workload:
    """A student block that takes and makes what the teacher's block in its place does."""
    what = f"blockwise: expected student block {number} to take"
    given = _given_to(number, student)
    with users_code(f"{what} {given}, found"):
        outputs = _outputs(blocks[:number], student)
    student = _behind(blocks[:number], student, outputs)
    batch = first_batch(student)
    check_block(number, student, outputs, through(blocks[: number + 1], batch))
    return student


def _given_to(number: int, student: Workload) -> str:
    """What a student block is called with, as messages say it."""
    named = [f"the batch field {name}" for name in student.space.fields(0)]
    before = ["the output of the teacher's block before it"] if number else []
    return " and ".join([*before, *named])


def _behind(
    blocks: Sequence[nn.Module], workload: Workload, outputs: Sequence[torch.Tensor]
) -> Workload:
    """A block, with what whoever measures it has to know of the teacher's blocks before it."""
    return replace(
        workload,
        tapped=partial(through, blocks) if blocks else None,
        output_bytes=sum(each.nbytes for each in outputs),
    )


@torch.no_grad()
def _outputs(blocks: Sequence[nn.Module], workload: Workload) -> tuple[torch.Tensor, ...]:
    """What first options make of what the teacher's blocks before them make of a batch."""
    batch = first_batch(workload)
    state = through(blocks, batch) if blocks else ()
    for position, block in enumerate(workload.space.blocks):
        module = block.candidates[0]().eval()
        given = (*state, *given_fields(module, workload.space, position, batch))
        result = block.forward_of(module, 0)(*(each.clone() for each in given))
        state = result if isinstance(result, tuple) else (result,)
    return state


def _teaching(blocks: Sequence[nn.Module], first: int, student: Workload, digest: str) -> Workload:
    """The last of some blocks of the teacher, and those from ``first`` on, as a stream."""
    space = Space(
        teacher_folder(len(blocks) - 1),
        [Block([CopyOf(each)], rule=Frozen()) for each in blocks[first:]],
        takes_input=not first,
    )
    definition = replace(
        student.definition, space=space.name, sampler="uniform", rules={}, teacher="",
        weights=digest,
    )  # fmt: skip
    return replace(
        student, space=space, definition=definition, make_strategy=None, held_out=None,
        is_trained=False, rank=-1,
    )  # fmt: skip


def _taps(lengths: Sequence[int], firsts: Sequence[int]) -> Iterator[Tap]:
    """Behind the students come the teacher's streams. What one of them makes is the lesson of its
    student. What its block before makes is the student's input; where it does not have that block
    itself, the stream before hands it on to both."""
    count = len(lengths)
    for number, (length, first) in enumerate(zip(lengths, firsts, strict=True)):
        student, own, before = StreamId(number), StreamId(count + number), count + number - 1
        yield Tap((own, number - first), (student, length - 1), TapRole.LESSON)
        if number and first < number:
            yield Tap((own, number - first - 1), (student, 0), TapRole.INPUT)
        elif number:
            source = (StreamId(before), number - 1 - firsts[number - 1])
            yield Tap(source, (student, 0), TapRole.INPUT)
            yield Tap(source, (own, 0), TapRole.INPUT)


def student_space(student: Space | nn.Module, number: int) -> Space:
    """A student block; all but the first are called with what the teacher's block before makes."""
    if isinstance(student, Space):
        own = student
    else:
        parts = student if isinstance(student, nn.Sequential | nn.ModuleList) else [student]
        own = chain(parts, name=folder(number))
    if not number:
        return own
    first, *others = own.blocks
    first = replace(first, fields=tuple(name for name in first.fields if name != "input"))
    return Space(
        own.name, [first, *others], own.decisions, own.proof, takes_input=False,
        weights=own.weights,
    )  # fmt: skip


@torch.no_grad()
def through(
    blocks: Sequence[nn.Module], batch: Mapping[str, torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    """What the teacher's first blocks make of a batch: the input of the student behind them."""
    state: Any = batch["input"]
    for block in blocks:
        state = block(*state) if isinstance(state, tuple) else block(state)
    return state if isinstance(state, tuple) else (state,)
