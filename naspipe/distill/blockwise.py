"""Blockwise distillation (Pipe-BD, DATE'23): each block of a frozen teacher teaches one student.

Student block i takes the teacher's output i - 1 as its input and learns only the teacher's output
i. No gradient leaves a block. Each student block is a separate stream, so that no block waits for
an optimizer step of another one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from naspipe.config.blocks import Block, CopyOf
from naspipe.config.errors import ConfigError
from naspipe.config.ids import StreamId
from naspipe.config.rules import Frozen
from naspipe.config.space import Space
from naspipe.config.user_code import users_code
from naspipe.config.wiring import Tap, TapRole
from naspipe.distill.distillation import Distillation
from naspipe.distill.output_checks import check_block, given_fields
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
"""Ways in which blocks receive the teacher's outputs, and the default placement of each.

``decoupled``: outputs are forwarded, and no block waits for a student. ``barrier``: outputs are
forwarded, and no block begins a step before all blocks have finished the previous one (for
comparison). ``apart``: every student has its own copy of the teacher's blocks up to its own
(layerwise scheduling, for comparison).
"""


def folder(block: int) -> str:
    return f"block-{block}"


def teacher_folder(block: int) -> str:
    return f"teacher-{block}"


class BlockLoss:
    """Mean squared difference from the teacher's output, over all elements."""

    fields = ()

    def distill(self, output: torch.Tensor, taught: torch.Tensor) -> torch.Tensor:
        return functional.mse_loss(output, taught)


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
) -> Distillation:
    """Return the streams of a blockwise distillation: one per student block, then the teacher's.

    Args:
        teachers: the teacher's blocks, with their weights.
        students: for each teacher block, the choice blocks or modules that replace it.
        data: (seed, number) -> named tensors.
        define: creates a workload from a space, data, a loss and the number of the block.
        loss: loss of every student block except the last; :class:`BlockLoss` by default.
        last_loss: loss of the last block; by default cross entropy against the teacher's softmax.
        relay: one of :data:`RELAYS`.
        window: steps that a block of the teacher may run ahead of the blocks that use its output.

    Raises:
        ConfigError: for a wrong number of students, outputs whose shape differs from the teacher's,
            a loss that needs more than these outputs, a teacher that changes its inputs or itself,
            or an unknown relay.
    """
    if relay not in RELAYS:
        raise ConfigError(f"relay: expected {' or '.join(RELAYS)}, found {relay!r:.80}")
    if window < 1:
        raise ConfigError(f"window: expected 1 step or more, found {window}")
    if len(teachers) != len(students) or not teachers:
        raise ConfigError(
            f"blockwise: expected a student for each block of the teacher, found {len(students)} "
            f"for {len(teachers)}"
        )
    blocks = [deepcopy(each).eval().requires_grad_(False) for each in teachers]
    with users_code("data: expected a batch from data(seed, 0), found"):
        batch = batch_apart(data, 0, 0)
    check_teaching(blocks, field_of(batch, "input", 0))
    digest = weights_digest(Space("teacher", _frozen(blocks)))
    count = len(blocks)
    losses = [*[loss or BlockLoss()] * (count - 1), last_loss or nn.CrossEntropyLoss()]
    defined = []
    for number, student in enumerate(students):
        own = with_loss_layer(define(student_space(student, number), data, losses[number], number))
        definition = replace(own.definition, teacher=digest)
        defined.append(replace(own, definition=definition, is_taught=True))
    own_streams = [_fitting(number, each, blocks) for number, each in enumerate(defined)]
    firsts = [number if relay != APART else 0 for number in range(count)]
    """The first teacher block that each teacher stream computes."""
    teaching = []
    for end, first in enumerate(firsts):
        space = Space(teacher_folder(end), _frozen(blocks[first : end + 1]), takes_input=not first)
        definition = replace(
            own_streams[0].definition,
            space=space.name,
            sampler="uniform",
            rules={},
            teacher="",
            weights=digest,
        )
        stream = replace(
            own_streams[0],
            space=space,
            definition=definition,
            make_strategy=None,
            held_out=None,
            is_trained=False,
            rank=-1,
        )
        before = blocks[:first]
        teaching.append(_after(before, stream, _outputs(before, stream)))
    passes = own_streams[0].recipe.steps.passes
    under_way = (1 if relay == BARRIER else window) * passes
    own_streams = [replace(each, window=under_way) for each in own_streams]
    lingers = relay == BARRIER
    teaching = [replace(each, window=under_way, lingers=lingers) for each in teaching]
    taps: list[Tap] = []
    for number, first in enumerate(firsts):
        own_student, own_teacher = StreamId(number), StreamId(count + number)
        end = len(own_streams[number].space) - 1
        taps.append(Tap((own_teacher, number - first), (own_student, end), TapRole.LESSON))
        # A student takes the output of the teacher's block before its own. If the teacher's stream
        # does not compute that block, it also takes the output of the previous stream.
        if number and first < number:
            taps.append(Tap((own_teacher, number - first - 1), (own_student, 0), TapRole.INPUT))
        elif number:
            source = (StreamId(count + number - 1), number - 1 - firsts[number - 1])
            taps.append(Tap(source, (own_student, 0), TapRole.INPUT))
            taps.append(Tap(source, (own_teacher, 0), TapRole.INPUT))
    places = (*map(folder, range(count)), *map(teacher_folder, range(count)))
    return Distillation((*own_streams, *teaching), tuple(taps), places)


def _frozen(blocks: Sequence[nn.Module]) -> list[Block]:
    return [Block([CopyOf(each)], rule=Frozen()) for each in blocks]


def _fitting(number: int, student: Workload, blocks: Sequence[nn.Module]) -> Workload:
    """Check that a student block has the inputs and outputs of the teacher block it replaces."""
    fields = [f"the batch field {name}" for name in student.space.fields(0)]
    before = ["the output of the teacher's block before it"] if number else []
    given = " and ".join([*before, *fields])
    with users_code(f"blockwise: expected student block {number} to take {given}, found"):
        outputs = _outputs(blocks[:number], student)
    student = _after(blocks[:number], student, outputs)
    check_block(number, student, outputs, through(blocks[: number + 1], first_batch(student)))
    return student


def _after(
    blocks: Sequence[nn.Module], workload: Workload, outputs: Sequence[torch.Tensor]
) -> Workload:
    """Add what a profiler needs to know about the teacher's blocks before a stream."""
    return replace(
        workload,
        tapped=partial(through, blocks) if blocks else None,
        output_bytes=sum(each.nbytes for each in outputs),
    )


@torch.no_grad()
def _outputs(blocks: Sequence[nn.Module], workload: Workload) -> tuple[torch.Tensor, ...]:
    """Run ``blocks`` and then the first candidate of each of the workload's blocks on a batch."""
    batch = first_batch(workload)
    state = through(blocks, batch) if blocks else ()
    for position, block in enumerate(workload.space.blocks):
        module = block.candidates[0]().eval()
        given = (*state, *given_fields(module, workload.space, position, batch))
        result = block.forward_of(module, 0)(*(each.clone() for each in given))
        state = result if isinstance(result, tuple) else (result,)
    return state


def student_space(student: Space | nn.Module, number: int) -> Space:
    """Return the space of a student block; all but the first take the teacher's output as input."""
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
        own.name,
        [first, *others],
        own.decisions,
        own.proof,
        takes_input=False,
        weights=own.weights,
    )


@torch.no_grad()
def through(
    blocks: Sequence[nn.Module], batch: Mapping[str, torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    """Run the teacher's first blocks on a batch and return the input of the next student block."""
    state: Any = batch["input"]
    for block in blocks:
        state = block(*state) if isinstance(state, tuple) else block(state)
    return state if isinstance(state, tuple) else (state,)
