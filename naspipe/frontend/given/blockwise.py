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

TEACHER = "teacher"
"""The folder of what is recorded of the teacher."""


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
    """The streams of a blockwise distillation: one for each student block, the teacher's last.

    Args:
        teachers: the teacher's blocks, with their weights.
        students: of each of them, a chain of choice blocks, or modules in their place.
        data: (seed, number) -> named tensors.
        define: makes a workload of a space, data, a loss and the number of the block.
        loss: of every student block but the last; :class:`BlockLoss` by default.
        last_loss: of the last one; by default cross entropy against the teacher's softmax.
        window: passes that the teacher may be ahead.

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
    space = Space(TEACHER, [Block([partial(deepcopy, each)], rule=Frozen()) for each in blocks])
    digest = weights_digest(space)
    last = len(blocks) - 1
    losses = [*[loss or BlockLoss()] * last, last_loss or nn.CrossEntropyLoss()]
    workloads = []
    for number, student in enumerate(students):
        own = student_space(student, number)
        made = define(own, data, losses[number], number)
        made = replace(
            made,
            definition=replace(made.definition, teacher=digest),
            tapped=partial(through, blocks[:number]) if number else None,
            is_whole=True,
        )
        _check_shapes(number, made, blocks[: number + 1])
        workloads.append(made)
    first = workloads[0]
    definition = replace(
        first.definition, space=space.name, sampler="uniform", rules={}, teacher="", weights=digest
    )
    teacher = replace(
        first, space=space, definition=definition, make_strategy=None, held_out=None,
        is_trained=False, is_whole=False, rank=1, window=window,
    )  # fmt: skip
    places = (*(folder(number) for number in range(len(blocks))), TEACHER)
    return Taught((*workloads, teacher), tuple(_taps(workloads)), places)


def _taps(students: Sequence[Workload]) -> Iterator[Tap]:
    """The teacher's stream comes last: its output i is lesson i, and input of student i + 1."""
    source = StreamId(len(students))
    for number, student in enumerate(students):
        end = (StreamId(number), len(student.space) - 1)
        yield Tap((source, number), end, TapRole.LESSON)
        if number:
            yield Tap((source, number - 1), (StreamId(number), 0), TapRole.INPUT)


def student_space(student: Space | nn.Module, number: int) -> Space:
    """A student block; all but the first are called with what the teacher's block before makes."""
    if isinstance(student, Space):
        own = student
    else:
        parts = student if isinstance(student, nn.Sequential | nn.ModuleList) else [student]
        own = chain(parts, name=folder(number))
    if not number:
        return own
    return Space(
        own.name, own.blocks, own.decisions, own.proof, takes_input=False, weights=own.weights
    )


@torch.no_grad()
def through(
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
    wanted = [tuple(each.shape) for each in through(blocks, batch)]
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
