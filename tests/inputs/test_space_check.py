"""Layers that do not fit are refused before the start; what might fit is left alone."""

from __future__ import annotations

import functools
import itertools
import json
import random
import sys
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import naspipe as npp
from naspipe.checks import shapes as followed_shapes
from naspipe.checks import space as space_check
from naspipe.checks.space import check_spaces
from naspipe.config.errors import ConfigError
from naspipe.config.ids import FIRST_STREAM, SequenceId, Subnet
from naspipe.config.recipe import Recipe
from naspipe.jobs.workload import Workload
from tests.inputs.convolutions import STEM, Pool, conv, data, head


def checked(*blocks, sampler="uniform", chains=(), device="cpu", loss=None, batches=data):
    space = npp.Space("mine", blocks)
    identity = {"steps": 3, "sampler": sampler}
    work = Workload.of(space, batches, loss or nn.CrossEntropyLoss(), recipe=Recipe(), **identity)
    subnets = [Subnet(FIRST_STREAM, SequenceId(n), each) for n, each in enumerate(chains)]
    notes = check_spaces([work], [subnets], (), device)
    return [each for each in notes if "would have to be plain" not in each]  # test_export_notes.py


def refused(*blocks, **how) -> str:
    with pytest.raises(ConfigError) as caught:
        checked(*blocks, **how)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def here(monkeypatch):
    """So that what happens in other processes can be counted."""

    def done(work, *_):
        return json.loads(json.dumps(work(lambda: None)))

    monkeypatch.setattr(space_check, "done_apart", done)


def test_candidates_of_different_shapes():
    """The block that makes the difference is named, and the layer that does not take it."""
    odd = npp.Block([conv(8, 8), conv(8, 12), nn.Identity])
    said = refused(STEM, odd, npp.Block([nn.Identity]), npp.Block([conv(8, 8)]), head())
    assert said.startswith(
        "block 0: candidate 1 returns [4, 12, 8, 8], candidate 0 [4, 8, 8, 8]; expected one shape, "
        "as layer 2.0 (Conv2d) takes only the second, found RuntimeError: Given groups=1, weight"
    )


def test_a_layer_that_takes_nothing_that_reaches_it():
    said = refused(STEM, npp.Block([conv(8, 8), conv(8, 8)]), head(9))
    assert said.startswith(
        "layer head (Sequential): expected to take what layer 0.0 (Conv2d) returns, [4, 8, 8, 8], "
        "found RuntimeError: mat1 and mat2"
    )


class Halves(nn.Module):
    def forward(self, x):
        return x.reshape(4, 2, -1, 7)


def test_the_users_own_line_is_named():
    said = refused(STEM, npp.Block([nn.Identity, Halves]), head())
    assert said.startswith("layer 0.1 (Halves): expected to take what layer stem")
    assert __file__ in said


def test_the_first_layer_and_the_batch():
    said = refused(npp.Shared("stem", conv(1, 8)), head())
    assert "layer stem (Conv2d): expected to take the batch's input, [4, 3, 8, 8], found" in said


def test_the_loss():
    said = refused(STEM, npp.Shared("head", Pool), loss=nn.MSELoss())
    assert said.startswith("the loss (MSELoss): expected to take what layer head (Pool) returns")


def test_something_else_than_tensors():
    class Lists(nn.Module):
        def forward(self, x):
            return [x]

    assert refused(STEM, npp.Block([Lists]), head()) == (
        "layer 0.0: expected a tensor or a tuple of tensors, found list"
    )


def test_shapes_that_differ_where_all_is_well():
    narrow = npp.Block([nn.Identity, lambda: nn.MaxPool2d(2), lambda: nn.AvgPool2d(4)])
    assert checked(STEM, narrow, npp.Block([conv(8, 8), nn.Identity]), head()) == []


class Valued(nn.Module):
    """Needs values, which shapes do not have."""

    def __init__(self, how):
        super().__init__()
        self.how = how

    def forward(self, x):
        return self.how(x)


def table(x):
    return x + TABLE[: len(x)]


TABLE = torch.ones(4, 8, 8, 8)


@pytest.mark.parametrize(
    "how",
    [
        lambda x: x if float(x.mean()) < 1e9 else x[0],
        lambda x: x if bool((x < 1e9).all()) else x[0],
        lambda x: x.flatten()[x.flatten().isnan().logical_not().nonzero()].reshape(x.shape),
        lambda x: torch.from_numpy(x.detach().numpy()) + x,
        lambda x: x * (1 if x.device.type == "cpu" else torch.ones(3, device="meta")),
        lambda x: x + torch.autograd.grad(x.pow(2).sum(), x, create_graph=True)[0],
        table,
    ],
)
def test_what_cannot_be_known_from_shapes_is_left_alone(how):
    made = [lambda: Valued(how), nn.Identity]
    assert checked(STEM, npp.Block(made), npp.Block([conv(8, 8)]), head()) == []


def test_many_that_cannot_be_known_are_not_tried_for_long(monkeypatch):
    tried = []
    compute = space_check.compute_first
    monkeypatch.setattr(space_check, "compute_first", lambda *all: tried.append(1) or compute(*all))
    here(monkeypatch)
    odd = [lambda: Valued(lambda x: x * (1 if x.device.type == "cpu" else {}[1]))] * 9
    assert checked(STEM, npp.Block(odd, alike=True), head()) == []
    assert len(tried) == space_check.MOST_TRIED


def test_a_factory_that_needs_memory_is_left_alone():
    def reads():
        layer = nn.Conv2d(8, 8, 1)
        layer.scale = float(layer.weight.sum())
        return layer

    assert checked(STEM, npp.Block([reads, nn.Identity]), head()) == []


def test_nothing_is_left_behind():
    """Neither draws, nor what layers keep for later calls."""

    @functools.cache
    def mask(size):
        return torch.ones(size, size).tril()

    def draws(x):
        random.random(), torch.rand(1)
        return x * mask(8)

    def cannot_be_known(x):
        return draws(x) if x.device.type == "cpu" else draws(x)[{}[1]]

    before = torch.get_rng_state(), random.getstate()
    drawing = [lambda: Valued(draws), lambda: Valued(cannot_be_known)]
    assert checked(STEM, npp.Block(drawing), head()) == []
    assert torch.equal(torch.get_rng_state(), before[0]) and random.getstate() == before[1]
    assert mask(8).device.type == "cpu"


def test_a_file_says_what_may_follow_what():
    first, then = npp.Block([conv(8, 8), conv(8, 12)]), npp.Block([conv(8, 8), conv(12, 8)])
    how = {"sampler": "file:some.jsonl"}
    assert checked(STEM, first, then, head(), chains=[(0, 0, 0, 0), (0, 1, 1, 0)], **how) == []
    said = refused(STEM, first, then, head(), chains=[(0, 0, 0, 0), (0, 1, 0, 0)], **how)
    assert said.startswith("block 0: candidate 1 returns [4, 12, 8, 8], candidate 0 [4, 8, 8, 8]")
    assert refused(STEM, first, then, head())


def test_beside_an_accelerator_only_what_also_works_is_believed():
    assert checked(STEM, npp.Block([conv(9, 8)]), head(), device="cuda") == []
    odd = npp.Block([conv(8, 8), conv(8, 12)])
    assert refused(STEM, odd, npp.Block([conv(8, 8)]), head(), device="cuda")


def test_a_large_space_is_followed_once_for_each_shape(monkeypatch):
    here(monkeypatch)
    calls = []
    called = followed_shapes._called
    monkeypatch.setattr(followed_shapes, "_called", lambda *all: calls.append(1) or called(*all))
    blocks = [
        npp.Block([lambda: nn.Conv2d(8, 8, 1), nn.Identity, lambda: nn.ReLU()]) for _ in range(40)
    ]
    assert checked(STEM, *blocks, head()) == []
    assert len(calls) == 1 + 3 + 1 + 1


def test_where_no_process_can_be_started_nothing_is_said(monkeypatch):
    """A pool's workers may have no processes, and train on one stage all the same."""
    odd = npp.Block([conv(8, 8), conv(8, 12)]), npp.Block([conv(8, 8)])

    def no_process(*_):
        raise BlockingIOError(11, "no more processes")

    with monkeypatch.context() as patch:
        patch.setattr(space_check, "done_apart", no_process)
        assert checked(STEM, *odd, head()) == []
    monkeypatch.setattr(space_check.current_process(), "_config", {"daemon": True})
    assert checked(STEM, *odd, head()) == []


WIDTHS = st.integers(2, 3)
LAYERS = st.one_of(st.none(), st.tuples(WIDTHS, WIDTHS))
"""None stands for a layer that takes anything and hands it on."""


def fits(path) -> bool:
    """Whether a subnet goes through: from width 2 to a target of width 2."""
    width = 2
    for layer in path:
        if layer is not None:
            if layer[0] != width:
                return False
            width = layer[1]
    return width == 2


@settings(max_examples=40)
@given(st.lists(st.lists(LAYERS, min_size=1, max_size=3), min_size=1, max_size=4))
def test_a_space_is_refused_if_and_only_if_a_subnet_fails(drawn):
    blocks = [
        npp.Block([nn.Identity if c is None else partial(nn.Linear, *c) for c in each], alike=True)
        for each in drawn
    ]
    batch = {"input": torch.ones(4, 2), "target": torch.ones(4, 2)}
    with pytest.MonkeyPatch.context() as patch:
        here(patch)
        how = {
            "loss": lambda output, target: (output @ target.T).sum(),
            "batches": lambda *_: batch,
        }
        if all(map(fits, itertools.product(*drawn))):
            assert checked(*blocks, **how) == []
        else:
            refused(*blocks, **how)


def test_a_class_that_no_export_could_copy_is_told_of(monkeypatch):
    """One of a function, one of a notebook; neither a class of a file nor one of torch."""

    class Local(nn.Identity):
        pass

    assert checked(STEM, npp.Block([conv(8, 8), nn.Identity]), head()) == []  # which has a Pool
    kinds = {"Local": Local, "Shown": type("Shown", (nn.Identity,), {"__module__": "__main__"})}
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
    whys = ("is defined inside a function", "is defined in a notebook or at a prompt")
    for (name, kind), why in zip(kinds.items(), whys, strict=True):
        inner = npp.Block([nn.Identity, lambda kind=kind: nn.Sequential(kind())])
        assert checked(STEM, inner, head()) == [
            f"to export layer 0.1, its class {name} will be needed at the top of a module file: "
            f"it {why}; it may move there after the run"
        ]


def test_a_factory_that_hands_out_what_was_made_before():
    """Two runs of it would not begin alike: the second goes on from the first one's weights."""
    made, relu = conv(8, 8)(), nn.ReLU()
    for factory in (lambda: made, lambda: nn.Sequential(nn.ReLU(), made)):
        said = refused(STEM, npp.Block([nn.Identity, factory]), head())
        assert "layer 0.1 (" in said and "make a new module each time, found one that hands" in said
        frozen = npp.Shared("kept", factory, rule=npp.Frozen())
        assert not checked(STEM, frozen, npp.Block([nn.Identity, lambda: relu]), head())
    assert not any(each.is_meta for each in made.parameters())


def test_tensors_that_are_made_from_values_are_new_ones():
    def make():
        layer = nn.Conv2d(8, 8, 1)
        layer.bias = nn.Parameter(torch.from_numpy(np.zeros(8, dtype="float32")))
        return layer

    assert not checked(STEM, npp.Block([nn.Identity, make]), head())
