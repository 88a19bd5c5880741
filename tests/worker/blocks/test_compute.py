"""A stage's blocks and WRITEs, called by hand in the order of a plain loop: the loop's bits."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from naspipe.config.errors import ConfigError
from naspipe.config.ids import FIRST_STREAM, INITIAL
from naspipe.machine.device_waits import per_block
from naspipe.worker.placement import Placement
from tests.oracle import bits
from tests.worker.blocks.stages_by_hand import FORWARD, Stages, expected
from tests.worker.small_parts import (
    CHAINS,
    LOSS,
    SEED,
    Residual,
    batches,
    layer,
    plain_loop,
    workload,
)
from tests.worker.tasks import task


def test_steps_by_hand_have_the_bits_of_the_plain_loop():
    stages, oracle = Stages(), plain_loop()
    losses = [stages.step(y) for y in range(len(CHAINS))]
    assert [bits(loss) for loss in losses] == [bits(loss) for loss in oracle.losses]
    assert stages.tensors() == expected(oracle)


def test_passes_that_overlap_read_what_they_were_told_to():
    """Subnets 0 and 1 share the stem and the head: 1 reads them before 0 has written."""
    stages = Stages()
    first = stages.forward(0, range(2))
    assert first is None
    stages.forward(1, range(2))
    stages.forward(0, range(2, 4))
    with torch.no_grad():
        oracle = plain_loop(0)
        for y in (0, 1):
            modules = [oracle.layer(*pair) for pair in enumerate(CHAINS[y])]
            _, loss = oracle.forward(y, 0, modules, batches(SEED, y), LOSS)
            if y == 1:
                assert bits(stages.forward(1, range(2, 4)).value) == bits(loss)


def test_a_version_that_is_not_there_is_refused():
    stages = Stages()
    stages.step(0)
    with pytest.raises(Exception, match="version -1 was asked for"):
        stages.computes[0].run_block(task(1, FORWARD, 0), layer(1, 0), INITIAL, 0)


def test_recompute_computes_each_forward_once_more_with_the_same_draws():
    plain, again = Stages(), Stages(replace(workload(), recompute=True))
    counts = []
    for stages in (plain, again):
        before = Residual.forwards
        losses = [bits(stages.step(y)) for y in range(2)]
        counts.append(Residual.forwards - before)
    assert counts == [2, 4]
    assert losses == [bits(loss) for loss in plain_loop(2).losses]
    assert again.tensors() == plain.tensors()


def test_what_a_pass_holds_is_forgotten_with_it():
    stages = Stages()
    compute = stages.computes[0]
    assert compute.kept_bytes == 0
    stages.forward(0)
    assert compute.kept_bytes > 0
    stages.backward(0)
    stages.write(0)
    for each in stages.computes:
        each.retire(FIRST_STREAM, 0)
    assert [each.kept_bytes for each in stages.computes] == [0, 0]


class Short(nn.Linear):
    """Runs out of memory once: in a forward, or half-way through a backward."""

    left: list[str] = []  # noqa: RUF012

    def __init__(self):
        super().__init__(6, 6)

    def forward(self, x):
        self._fail("forward")
        out = super().forward(x)
        if x.requires_grad:
            x.register_hook(lambda gradient: self._fail("backward"))
        return out

    def _fail(self, where):
        if where in Short.left:
            Short.left.remove(where)
            raise torch.OutOfMemoryError("injected")


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_a_block_that_ran_out_of_memory_has_changed_nothing(monkeypatch, where):
    """Tried again it leaves the bits of a block that never did."""
    monkeypatch.setattr("tests.worker.small_parts.Residual", Short)
    calm, short = Stages(), Stages()
    calm.step(0)
    short.forward(0, range(1))
    Short.left.append(where)
    if where == "forward":
        with pytest.raises(torch.OutOfMemoryError):
            short.forward(0, range(1, 4))
        short.forward(0, range(1, 4))
        short.backward(0)
    else:
        short.forward(0, range(1, 4))
        with pytest.raises(torch.OutOfMemoryError):
            short.backward(0)
        short.computes[1].free_memory()
        short.backward(0, range(2, -1, -1))
    short.write(0)
    assert short.tensors() == calm.tensors() and not Short.left


def test_a_write_waits_for_nothing(monkeypatch):
    """docs/gpus.md, "What time stamps mean": its kernels fall into the stage's next block."""
    waited = []
    monkeypatch.setattr(Placement, "_wait", lambda self, mark: waited.append("block"))
    stages = Stages()
    stages.forward(0)
    stages.backward(0)
    assert waited == ["block"] * 8
    before = per_block(1)
    stages.write(0)
    assert waited == ["block"] * 8
    assert per_block(1) == before


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (lambda seed, y: {"target": batches(seed, y)["target"]}, "called 'input', found target"),
        (lambda seed, y: {}, "called 'input', found an empty batch"),
        (lambda seed, y: {"input": [1.0], "target": None}, "batch 0: expected a tensor called"),
    ],
)
def test_a_batch_without_a_field_is_named(data, message):
    with pytest.raises(ConfigError, match=message):
        Stages(workload(data)).forward(0)


def test_a_batch_is_made_once_for_all_blocks_of_a_pass():
    made = []

    def data(seed, y):
        made.append(y)
        return batches(seed, y)

    stages = Stages(workload(data))
    stages.step(0)
    assert made == [0, 0], "once on each stage"
