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

from naspipe.core.errors import ConfigError
from naspipe.core.ids import StreamId
from naspipe.core.rules import Frozen
from naspipe.core.space import Block, Space
from naspipe.core.wiring import Tap, TapRole
from naspipe.frontend.given.plain_chain import chain
from naspipe.frontend.given.taught import Taught
from naspipe.frontend.given.teachers import weights_digest
from naspipe.runtime.jobs.workload import Batches, Workload


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
        window: passes that a block of the teacher may be ahead of those who take its output.

    Raises:
        ConfigError: for another number of students, or outputs of another shape than the
            teacher's.
    """
    if len(teachers) != len(students) or not teachers:
        raise ConfigError(
            f"blockwise: expected a student for each block of the teacher, found {len(students)} "
            f"for {len(teachers)}"
        )
    blocks = [deepcopy(each).eval().requires_grad_(False) for each in teachers]
    digest = _digest(blocks)
    last = len(blocks) - 1
    losses = [*[loss or BlockLoss()] * last, last_loss or nn.CrossEntropyLoss()]
    own = [
        _taught(define(_student_space(student, number), data, losses[number], number), digest)
        for number, student in enumerate(students)
    ]
    own = [_behind(blocks[:number], each) for number, each in enumerate(own)]
    for number, student in enumerate(own):
        _check_shapes(number, student, blocks[: number + 1])
    teaching = [
        _teaching(number, block, own[0], digest, window) for number, block in enumerate(blocks)
    ]
    teaching = [_behind(blocks[:number], each) for number, each in enumerate(teaching)]
    numbers = range(len(blocks))
    places = (*map(folder, numbers), *map(teacher_folder, numbers))
    return Taught((*own, *teaching), tuple(_taps(own)), places)


def _digest(blocks: Sequence[nn.Module]) -> str:
    """Of the whole teacher."""
    return weights_digest(
        Space("teacher", [Block([partial(deepcopy, each)], rule=Frozen()) for each in blocks])
    )


def _taught(student: Workload, digest: str) -> Workload:
    return replace(student, definition=replace(student.definition, teacher=digest))


def _behind(blocks: Sequence[nn.Module], workload: Workload) -> Workload:
    """A block, with what whoever measures it has to know of the teacher's blocks before it."""
    batch = workload.data(workload.definition.seed, 0)
    taken = _through(blocks, batch)
    space, state = workload.space, taken
    with torch.no_grad():
        for block in space.blocks:
            result = block.candidates[0]().eval()(*state)
            state = result if isinstance(result, tuple) else (result,)
    return replace(
        workload,
        tapped=partial(_through, blocks) if blocks else None,
        output_bytes=sum(each.nbytes for each in state),
    )


def _teaching(
    number: int, block: nn.Module, student: Workload, digest: str, window: int
) -> Workload:
    """A block of the teacher as a stream of its own."""
    space = Space(
        teacher_folder(number),
        [Block([partial(deepcopy, block)], rule=Frozen())],
        takes_input=not number,
    )
    definition = replace(
        student.definition, space=space.name, sampler="uniform", rules={}, teacher="",
        weights=digest,
    )  # fmt: skip
    return replace(
        student, space=space, definition=definition, make_strategy=None, held_out=None,
        is_trained=False, rank=1, window=window,
    )  # fmt: skip


def _taps(students: Sequence[Workload]) -> Iterator[Tap]:
    """Behind the students come the teacher's blocks. What one of them makes is the lesson of its
    student, and what the next block of the teacher and the next student are called with."""
    count = len(students)
    for number, student in enumerate(students):
        source = (StreamId(count + number), 0)
        yield Tap(source, (StreamId(number), len(student.space) - 1), TapRole.LESSON)
        if number + 1 < count:
            yield Tap(source, (StreamId(count + number + 1), 0), TapRole.INPUT)
            yield Tap(source, (StreamId(number + 1), 0), TapRole.INPUT)


def _student_space(student: Space | nn.Module, number: int) -> Space:
    """A student block; all but the first are called with what the teacher's block before makes."""
    if isinstance(student, Space):
        own = student
    else:
        parts = student if isinstance(student, nn.Sequential | nn.ModuleList) else [student]
        own = chain(parts, name=folder(number))
    if not number:
        return own
    return Space(own.name, own.blocks, own.decisions, own.proof, takes_input=False)


@torch.no_grad()
def _through(
    blocks: Sequence[nn.Module], batch: Mapping[str, torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    """What the teacher's first blocks make of a batch: the input of the student behind them."""
    state: Any = batch["input"]
    for block in blocks:
        state = block(*state) if isinstance(state, tuple) else block(state)
    return state if isinstance(state, tuple) else (state,)


@torch.no_grad()
def _check_shapes(number: int, student: Workload, blocks: Sequence[nn.Module]) -> None:
    batch = student.data(student.definition.seed, 0)
    inputs = (batch["input"],) if student.tapped is None else student.tapped(batch)
    wanted = [tuple(each.shape) for each in _through(blocks, batch)]
    state: tuple[torch.Tensor, ...] = inputs
    for block in student.space.blocks:
        result = block.candidates[0]().eval()(*state)
        state = result if isinstance(result, tuple) else (result,)
    found = [tuple(each.shape) for each in state]
    if found != wanted:
        raise ConfigError(
            f"blockwise: expected the output of student block {number} to have the shape of its "
            f"teacher's, {' and '.join(map(str, wanted))}, found {' and '.join(map(str, found))}"
        )
