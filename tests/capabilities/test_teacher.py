"""A stream of another space that is only run forward, tapped into the loss of a trained one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional

import naspipe as npp
from naspipe.config.ids import AccessKind
from naspipe.config.wiring import StreamWiring, Tap, TapRole, Wiring
from tests.capabilities import plain, simulated
from tests.equivalence import spaces
from tests.equivalence.harness import assert_same_bits, oracle_of, plain_torch

SEED, TAUGHT_BY = 1, 9


class Loss:
    """Half the target's, half the teacher's."""

    def __call__(self, output, target):
        return functional.cross_entropy(output, target)

    def distill(self, output, taught, target):
        soft = functional.cross_entropy(output, taught.softmax(1))
        return 0.5 * functional.cross_entropy(output, target) + 0.5 * soft


def teacher_space():
    """Dropout and batch normalisation would show if it were not in evaluation mode."""
    return npp.Space("teacher", [
        npp.Shared("in", lambda: nn.Linear(16, 32)),
        npp.Shared("norm", lambda: nn.BatchNorm1d(32)),
        npp.Shared("drop", lambda: nn.Dropout(0.5)),
        npp.Shared("out", lambda: nn.Linear(32, 10)),
    ])  # fmt: skip


def plain_step(teacher):
    def step(loop, y, chain, batch):
        with torch.no_grad():
            taught = ()
            for block in range(4):
                module = teacher.layer(block, 0).eval()
                taught = plain.call(teacher, y, block, module, taught, batch)
        used, state = plain.modules_of(loop, y, chain), ()
        for (block, _), module in used.items():
            state = plain.call(loop, y, block, module, state, batch)
        loss = Loss().distill(*state, *taught, batch["target"])
        loss.backward()
        loop.losses.append(loss.detach())
        loop.write(y, used)

    return step


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_the_bits_are_those_of_the_plain_loop(tmp_path, stages):
    student = npp.workload(
        spaces.mixed(), spaces.vectors, Loss(), steps=14, seed=SEED, lr=0.05, optimizer="SGD"
    )
    teacher = npp.workload(teacher_space(), same_batches, Loss(), steps=14, seed=TAUGHT_BY)
    teacher = replace(teacher, is_trained=False, rank=1, window=6)
    tap = Tap(source=(1, 3), sink=(0, 7), role=TapRole.LESSON)
    run, _ = npp.train_together(
        [student, teacher], npp.Execution(stages=stages), tmp_path / "run", taps=[tap]
    )
    with plain_torch():
        loop = oracle_of(teacher_space(), TAUGHT_BY, "SGD", 0.05)
    assert_same_bits(run, plain.train(run, spaces.vectors, plain_step(loop), seed=SEED))


def same_batches(seed, sequence_id):
    """The teacher has a seed of its own for its weights; its batches are the student's."""
    return spaces.vectors(SEED, sequence_id)


@pytest.mark.parametrize("bounds", [(0, 3, 6), (0, 5, 6), (0, 1, 6)])
def test_a_student_waits_for_its_lesson_and_the_teacher_runs_ahead(bounds):
    tap = Tap(source=(1, 5), sink=(0, 5), role=TapRole.LESSON)
    wiring = Wiring(streams=(StreamWiring(), StreamWiring(is_trained=False, rank=1)), taps=(tap,))
    streams = [simulated.subnets(0), simulated.subnets(1)]

    def partition_of(subnet):
        return bounds if subnet.stream == 0 else (0, 6 - bounds[1], 6)

    for seed in range(5):
        accesses = simulated.run(streams, partition_of, wiring=wiring, seed=seed)
        ends = {(a.layer.stream, a.sequence_id, a.layer.block, a.kind): a for a in accesses}
        for y in range(len(streams[0])):
            lesson = ends[1, y, 5, AccessKind.FORWARD]
            assert lesson.end_ns <= ends[0, y, 5, AccessKind.FORWARD].start_ns
        assert {a.kind for a in accesses if a.layer.stream == 1} == {AccessKind.FORWARD}
