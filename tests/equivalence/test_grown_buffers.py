"""Buffers that forwards replace, grow, resize, register or drop: they go where their layer goes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import naspipe as npp
from naspipe.config.errors import ConfigError
from tests.equivalence.harness import assert_same_bits, check, plain_loop, restless
from tests.faults.helpers import interrupt_and_resume

LOSS = nn.CrossEntropyLoss()


class Grows(nn.Module):
    """Keeps a table as long as the longest sequence so far, as rotary embeddings do."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)
        self.register_buffer("table", torch.arange(4.0)[:, None] / 10)

    def forward(self, x):
        if x.shape[1] > len(self.table):
            self.register_buffer("table", torch.arange(float(x.shape[1]))[:, None] / 10)
        return x + torch.tanh(self.linear(x) + self.table[: x.shape[1]])


class Resizes(nn.Module):
    """As torch's quantisers for each channel: empty at first, and resized in place."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)
        self.register_buffer("most", torch.empty(0))
        self.register_buffer("count", torch.zeros(3))
        self.register_buffer("scale", torch.ones(1))

    def forward(self, x):
        found = x.detach().abs().amax((0, 1))
        if not self.most.numel():
            self.most.resize_(found.shape).zero_()
            self.scale.resize_(found.shape).fill_(1)
        self.most.copy_(torch.maximum(self.most, found))
        self.count.add_(1)
        return x + self.linear(x / (self.scale + self.most))


class Registers(nn.Module):
    """Two names of one buffer that the first forward makes, and one that the third drops."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)
        self.register_buffer("late", None)
        self.register_buffer("once", torch.ones(16))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls = self.calls + 1
        if self.late is None:
            self.late = x.detach().mean((0, 1))
            self.register_buffer("new", torch.full((2,), 0.5))
        if self.calls > 3:
            self.once = None
        kept = 0 if self.once is None else self.once
        return x + torch.tanh(self.linear(x) + self.late * self.new[0] + kept)


KINDS = {"grows": Grows, "resizes": Resizes, "registers": Registers}


class Mean(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 4)

    def forward(self, x):
        return self.linear(x.mean(1))


def text(seed, number):
    generator = torch.Generator().manual_seed(1000 * seed + number)
    count = int(torch.randint(3, 12, (1,), generator=generator))
    x = torch.randint(0, 30, (8, count), generator=generator)
    return {"input": x, "target": x[:, 0] % 4}


def space_of(kind):
    return npp.Space(
        f"buffers-{kind}",
        [
            npp.Shared("stem", lambda: nn.Embedding(30, 16), rule=npp.Lag(1)),
            *(npp.Block([KINDS[kind], lambda: nn.Linear(16, 16)]) for _ in range(4)),
            npp.Shared("head", Mean),
        ],
    )


@pytest.mark.parametrize("kind", KINDS)
def test_on_stages_that_hand_layers_over(tmp_path, monkeypatch, kind):
    restless(monkeypatch)
    check(tmp_path, space_of(kind), text, LOSS, stages=(1, 3), steps=20)


@pytest.mark.parametrize("kind", KINDS)
def test_with_recompute(tmp_path, kind):
    check(
        tmp_path, space_of(kind), text, LOSS, stages=(2,), steps=16,
        execution={"recompute": True},
    )  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_in_steps_of_several_passes_on_two_groups(tmp_path, kind):
    check(
        tmp_path, space_of(kind), text, LOSS, stages=(1, 2), steps=8,
        recipe={"passes": "accumulate:2"}, execution={"groups": 2},
    )  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_resumed_on_other_stages_and_read_back(tmp_path, kind):
    space = space_of(kind)
    run = interrupt_and_resume(
        tmp_path, text, {"stages": 2}, {"stages": 1}, space=space, options={}, lr=0.05
    )
    oracle = plain_loop(space, text, LOSS, run, seed=1, optimizer="SGD", lr=0.05)
    assert_same_bits(run, oracle)
    for block in range(4):
        found = dict(run.layer(block, 0).named_buffers())
        expected = dict(oracle.layer(block + 1, 0).named_buffers())
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], value) for name, value in expected.items())


@pytest.mark.parametrize("kind", ["grows", "resizes"])
def test_weights_to_begin_with(tmp_path, kind):
    """A second run begins with buffers of the sizes that the first one left."""
    space = space_of(kind)
    first = npp.train(space, text, LOSS, steps=12, seed=1, lr=0.05, run_dir=tmp_path / "first")
    then = npp.train(
        space, text, LOSS, steps=12, seed=1, lr=0.0, init_from=first, run_dir=tmp_path / "then"
    )
    name = {"grows": "table", "resizes": "most"}[kind]
    layers = [(block, candidate) for block in range(4) for candidate in range(1)]
    sizes = [[len(run.layer(*each).get_buffer(name)) for each in layers] for run in (first, then)]
    assert all(then >= before for before, then in zip(*sizes, strict=True)) and max(sizes[0]) > 4


@pytest.mark.parametrize("kind", KINDS)
def test_a_budget_is_refused_before_anything_is_written(tmp_path, kind):
    with pytest.raises(
        ConfigError, match=r"^layer 0\.0: buffer/\w+ (grew|was not).*memory_budget$"
    ):
        npp.train(
            space_of(kind), lambda seed, number: text(seed, 3), LOSS, steps=4,
            run_dir=tmp_path / "run", memory_budget="2x",
        )  # fmt: skip
    assert not (tmp_path / "run").exists()
