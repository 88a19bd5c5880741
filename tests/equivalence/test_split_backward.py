"""Split backwards: the bits of the plain loop, and faults of the split that turn it red.

Most other modules of this folder run every second test with split backwards; see conftest.py.
"""

from __future__ import annotations

import traceback
from functools import partial
from itertools import chain

import pytest
import torch
from torch import nn
from torch.nn import functional

import naspipe as npp
from naspipe.config.rules import Lag
from naspipe.worker.blocks import split_backward
from naspipe.worker.blocks.compute import StageCompute
from naspipe.worker.blocks.pass_state import PassState
from naspipe.worker.blocks.split_backward import Owed, Plan
from naspipe.worker.blocks.updates import StageUpdates
from tests.equivalence import spaces
from tests.equivalence.harness import assert_same_bits, check, plain_loop

LOSS = nn.CrossEntropyLoss()
SPLIT = {"backward": "split"}
PASSES = ["one", "accumulate:2"]
WIDTH = 24


class Deep(nn.Module):
    """Has two weights on one way from its output to its input."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)

    def forward(self, x):
        return x + self.down(self.up(self.norm(x)).relu())


class Deciding(nn.Module):
    """Uses its weights in an order that depends on the data."""

    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        pair = (self.one, self.other) if x.detach()[0, 0] > 0 else (self.other, self.one)
        return pair[1](pair[0](x).tanh())


class Scaled(nn.Module):
    """Each of its forwards changes a buffer that the gradient of its weight depends on."""

    def __init__(self, through_data=False):
        super().__init__()
        self.linear, self.through_data = nn.Linear(WIDTH, WIDTH), through_data
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x):
        if self.training:
            scale = self.scale.data if self.through_data else self.scale
            scale.copy_(0.9 * scale + 0.1 * x.detach().abs().max())
        return x + functional.linear(x, self.linear.weight / self.scale, self.linear.bias)


class Halved(torch.autograd.Function):
    """Its backward changes the gradient that it is given."""

    @staticmethod
    def forward(ctx, x):
        return x * 0.5

    @staticmethod
    def backward(ctx, gradient):
        return gradient.mul_(0.5)


class Fork(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.linear(x).tanh(), Halved.apply(x)


class Added(nn.Module):
    """What arrives at its linear layer is handed on as the gradient of its second input."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, side):
        return self.linear(x) + side


def space_of(*blocks):
    return npp.Space("split", [
        npp.Shared("stem", lambda: nn.Linear(16, WIDTH)),
        *(npp.Block([made] * 2, alike=True) for made in blocks),
        npp.Shared("head", lambda: nn.Linear(WIDTH, 10)),
    ])  # fmt: skip


SPACES = {
    "deep": (Deep,) * 4,
    "deciding": (Deciding,) * 2,
    "fork": (Fork, Added) * 2,
}


@pytest.mark.parametrize("name", SPACES)
def test_bits_of_the_plain_loop(tmp_path, name):
    runs = check(
        tmp_path, space_of(*SPACES[name]), spaces.vectors, LOSS, stages=(1, 2), steps=12,
        options={"momentum": 0.9}, execution=SPLIT,
    )  # fmt: skip
    kept = "4 of 10" if name == "fork" else "0 of"
    assert all(f"split backward: {kept}" in why_whole(run) for run in runs)


@pytest.mark.parametrize("through_data", [False, True])
def test_a_buffer_that_the_next_pass_changes(tmp_path, through_data):
    """On one stage, where the backward of a pass comes before the forward of the next one."""
    scaled = partial(Scaled, through_data)
    check(
        tmp_path, space_of(scaled, scaled, scaled), spaces.vectors, LOSS, stages=(1,), steps=8,
        recipe={"passes": "accumulate:3"}, execution=SPLIT,
    )  # fmt: skip


def normalised():
    """Its weight is computed of two parameters, which the gradient of the weight reads."""
    return nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH))


def lagging():
    """The first two layers have bounded staleness."""
    return npp.Space("lagging", [
        npp.Shared("stem", lambda: nn.Linear(16, WIDTH), rule=Lag(2)),
        npp.Shared("next", normalised, rule=Lag(2)),
        *(npp.Block([made] * 2, alike=True) for made in (Deep, normalised)),
        npp.Shared("head", lambda: nn.Linear(WIDTH, 10)),
    ])  # fmt: skip


@pytest.mark.parametrize(
    ("made", "recipe", "groups"),
    [
        (lambda: space_of(Deep, normalised, Deep, normalised), {}, 1),
        (
            lambda: space_of(Deep, normalised, Deep, normalised),
            {"passes": "accumulate:2", "clip_global_norm": 0.5},
            1,
        ),
        (lambda: space_of(Deep, normalised, normalised), {"passes": "accumulate:4"}, 2),
        (lagging, {}, 1),
        (lagging, {"passes": "accumulate:2"}, 1),
    ],
    ids=["exact", "clipped", "groups", "lag", "lag, passes"],
)
@pytest.mark.parametrize("budget", ["0.001x", "1.5x"])
def test_with_a_memory_budget(tmp_path, monkeypatch, budget, made, recipe, groups):
    """Memory is short before each block, too, so that graphs and what is owed are given up."""
    run_block = StageCompute.run_block

    def when_short(compute, *block):
        compute.free_memory()
        return run_block(compute, *block)

    monkeypatch.setattr(StageCompute, "run_block", when_short)
    runs = check(
        tmp_path, made(), spaces.vectors, LOSS, stages=(1, 2), steps=12, optimizer="Adam",
        lr=0.01, recipe=recipe,
        execution={**SPLIT, "memory_budget": budget, "groups": groups},
    )  # fmt: skip
    assert all("split backward: 0 of" in why_whole(run) for run in runs)
    for run in runs:
        budgets, stages = run.manifest["execution"]["budgets"], run.manifest["measured"]["stages"]
        for limit, measured in zip(budgets, stages, strict=True):
            assert 0 < measured["device_peak_bytes"] <= limit


@pytest.mark.parametrize("where", ["evict", "contribution", "write"])
def test_what_is_owed_is_computed_again_where_memory_was_short(tmp_path, monkeypatch, where):
    """Wherever that first happens; what can be freed is freed before."""
    compute, has_failed = Owed.compute, []

    def short_once(owed):
        callers = {frame.name for frame in traceback.extract_stack()}
        if where in callers and "free_memory" not in callers and not has_failed:
            has_failed.append(where)
            raise torch.OutOfMemoryError("injected")
        return compute(owed)

    monkeypatch.setattr(Owed, "compute", short_once)
    check(
        tmp_path, space_of(Deep, normalised, Deep, normalised), spaces.vectors, LOSS, stages=(1,),
        steps=12, recipe={"passes": "accumulate:2", "clip_global_norm": 0.5},
        execution={**SPLIT, "memory_budget": "0.001x"},
    )  # fmt: skip


def why_whole(run):
    return run.manifest["measured"]["whole_backwards"]


def train(path, space, **recipe):
    return npp.train(
        space, spaces.vectors, LOSS, steps=12, seed=1, lr=0.05, stages=2, run_dir=path,
        execution=SPLIT, recipe=recipe,
    )  # fmt: skip


def assert_as_plain(run, **recipe):
    oracle = plain_loop(
        run.space, spaces.vectors, LOSS, run, seed=1, optimizer="SGD", lr=0.05, **recipe
    )
    assert_same_bits(run, oracle)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.backward(name)) for name in ("whole", "split")]
)
def test_a_test_of_this_folder_may_say_which_backward_it_is_about(tmp_path, name):
    run = npp.train(space_of(Deep), spaces.vectors, LOSS, steps=2, run_dir=tmp_path / "run")
    assert run.manifest["execution"]["backward"] == name
    assert ("whole_backwards" in run.manifest["measured"]) == (name == "split")


def drop_what_arrives(patch):
    """Nothing is kept of what arrives at a join, and pieces without a gradient are left out."""
    patch.setattr(split_backward, "_keep", lambda *_: None)


def compute_all_at_once(patch):
    """One call of the engine for all joins: it counts twice what is behind two of them."""
    begin = Owed.__init__

    def merged(owed, graph, pieces, is_whole):
        roots = [root for piece in pieces for root in piece.roots]
        parameters = dict(chain(*(piece.parameters.items() for piece in pieces)))
        begin(owed, graph, [split_backward._Piece(roots, parameters)], is_whole)

    patch.setattr(Owed, "__init__", merged)


SHOWN = {
    drop_what_arrives: "other parameters have a gradient",
    compute_all_at_once: "the gradient of up.weight has other bits",
}
"""Faults that the first backward of a candidate shows, and what is then said of it."""


def compute_before_it_arrives(patch):
    """W takes what has arrived so far: the gradient of the layer's pass before."""
    split, known = split_backward._split, {}

    def hasty(graph, joins, early):
        owed = split(graph, joins, early)
        now = [gradient for ((_, gradient),), *_ in owed.pieces]
        before = known.get(id(graph.layer.module), now)
        known[id(graph.layer.module)] = now
        owed._pieces = [
            piece._replace(roots=[(piece.roots[0][0], gradient)])
            for piece, gradient in zip(owed.pieces, before, strict=True)
        ]
        return owed

    patch.setattr(split_backward, "_split", hasty)


def take_another_pass(patch):
    """The update of a pass gets the W of the layer's pass before."""
    compute, known = Owed.compute, {}

    def wrong(owed):
        key = id(owed._layer.module)
        now = compute(owed)
        before, known[key] = known.get(key, now), now
        return before

    patch.setattr(Owed, "compute", wrong)


def update_first(patch):
    """The update does not wait for W."""
    patch.setattr(PassState, "settle", lambda state, layer: False)


UNSEEN = [compute_before_it_arrives, take_another_pass, update_first]
"""Faults that no first backward shows, because they are in what comes after it."""


@pytest.mark.parametrize("break_it", SHOWN, ids=lambda each: each.__name__)
def test_a_fault_of_the_first_backward_leaves_candidates_whole(tmp_path, monkeypatch, break_it):
    break_it(monkeypatch)
    run = train(tmp_path / "run", space_of(Deep, Deep, Deep))
    assert_as_plain(run)
    assert SHOWN[break_it] in why_whole(run)


@pytest.mark.parametrize("passes", PASSES)
def test_without_a_fault(tmp_path, passes):
    run = train(tmp_path / "run", space_of(Deep, Deep, Deep), passes=passes)
    assert_as_plain(run, passes=passes)
    assert "split backward: 0 of" in why_whole(run)


@pytest.mark.parametrize("passes", PASSES)
@pytest.mark.parametrize("break_it", [*SHOWN, *UNSEEN], ids=lambda each: each.__name__)
def test_a_fault_changes_bits(tmp_path, monkeypatch, break_it, passes):
    """Also one that the first backward would show, were the comparison there not to see it."""
    break_it(monkeypatch)
    monkeypatch.setattr(split_backward, "_difference", lambda whole, split: "")
    run = train(tmp_path / "run", space_of(Deep, Deep, Deep), passes=passes)
    with pytest.raises(AssertionError, match=r"first loss that differs: subnet [1-9]"):
        assert_as_plain(run, passes=passes)


def test_norms_that_are_told_before_all_gradients_are_there_end_the_run(tmp_path, monkeypatch):
    gather = StageUpdates._gather

    def hasty(updates, layer, sequence_id):
        state = updates._passes[layer.stream, sequence_id]
        owed = dict(state.owed)
        state.owed.clear()
        gather(updates, layer, sequence_id)
        state.owed.update(owed)

    recipe = {"clip_global_norm": 0.1}
    assert_as_plain(train(tmp_path / "well", space_of(Deep, Deep), **recipe), **recipe)
    monkeypatch.setattr(StageUpdates, "_gather", hasty)
    with pytest.raises(npp.NaspipeError, match="KeyError"):
        train(tmp_path / "run", space_of(Deep, Deep), **recipe)


def test_a_graph_that_is_not_compared_changes_bits(tmp_path, monkeypatch):
    def trusting(plan, graph):
        nodes, _ = split_backward._walked([output.grad_fn for output, _ in graph.roots])
        named = graph.layer.parameters
        return [
            split_backward._Join(nodes[join], {name: named[name] for name in names}, kernel)
            for join, names, kernel in plan.joins
        ]

    monkeypatch.setattr(Plan, "find", trusting)
    run = train(tmp_path / "run", space_of(Deciding, Deciding))
    assert "split backward: 0 of" in why_whole(run)
    with pytest.raises(AssertionError, match=r"first loss that differs: subnet [1-9]"):
        assert_as_plain(run)


def test_gradients_that_share_memory_with_what_is_handed_on_change_bits(tmp_path, monkeypatch):
    monkeypatch.setattr(split_backward, "apart", lambda tensors, others: list(tensors))
    run = train(tmp_path / "run", space_of(Fork, Added, Fork, Added))
    with pytest.raises(AssertionError, match=r"first loss that differs: subnet [1-9]"):
        assert_as_plain(run)
