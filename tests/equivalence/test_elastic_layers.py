"""One layer of many settings: the bits of a loop that slices one module, however it is run."""

from __future__ import annotations

from dataclasses import replace

import pytest
from torch import nn

import naspipe as npp
from naspipe.config.rules import parse_rule
from naspipe.store.access_log import read_run_accesses
from tests.equivalence import elastic_spaces as elastic
from tests.equivalence import spaces
from tests.equivalence.harness import check, restless
from tests.equivalence.test_growing_streams import Greedy
from tests.faults import helpers
from tests.thinned import long

LOSS = nn.CrossEntropyLoss()
SGD = {"optimizer": "SGD", "options": {"momentum": 0.9, "weight_decay": 1e-3}, "lr": 0.05}
ADAMW = {"optimizer": "AdamW", "options": {"weight_decay": 0.1}, "lr": 0.01}
LEAST = {"memory_budget": "0.001x"}


def train(tmp_path, make, data, *rule, loss=LOSS, **given):
    return check(tmp_path, make(*rule), data, loss, **given)


@pytest.mark.parametrize("stages", [1, 2, 4])
@pytest.mark.parametrize(
    ("make", "data", "loss", "optimizer"),
    [
        (elastic.linears, elastic.vectors, LOSS, SGD), (elastic.images, elastic.maps, LOSS, SGD),
        (elastic.texts, elastic.tokens, elastic.TokenLoss(), ADAMW),
        long(elastic.images, elastic.maps, LOSS, ADAMW),
    ],
)  # fmt: skip
def test_bits_of_the_plain_loop(tmp_path, make, data, loss, optimizer, stages):
    """Linear, Conv, BatchNorm, attention, embedding, depth; a width that all of them share."""
    train(tmp_path, make, data, loss=loss, stages=(stages,), steps=12, **optimizer)


@pytest.mark.parametrize("rule", ["lag(4)", "lag(2,predict)", "every(3)"])
@pytest.mark.parametrize("optimizer", [SGD, ADAMW])
@pytest.mark.parametrize(
    ("make", "data"), [(elastic.linears, elastic.vectors), (elastic.images, elastic.maps)]
)
def test_layers_that_are_read_late(tmp_path, make, data, rule, optimizer):
    train(tmp_path, make, data, parse_rule(rule), stages=(3,), steps=12, **optimizer)


@pytest.mark.parametrize(
    ("passes", "execution"),
    [
        long("sandwich:2", {}), ("sandwich:2", {"recompute": True}), long("subnets:8", {}),
        ("subnets:8:users", {"groups": 2}), ("subnets:2", {"recompute": True, **LEAST}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("stages", [1, 2])
def test_steps_of_several_passes(tmp_path, passes, execution, stages):
    """Their gradients are dense, and added up as autograd adds those of slices."""
    (run,) = train(
        tmp_path, elastic.linears, elastic.vectors, stages=(stages,), steps=4, **SGD,
        recipe={"passes": passes}, execution=execution,
    )  # fmt: skip
    if passes == "sandwich:2":
        assert {*run.stream[::4]} == {(2, 2, 0, 5, 5, 2)}, "the largest subnet"
        assert {*run.stream[1::4]} == {(0, 0, 2, 0, 0, 0)}, "the smallest"
        assert run.access_order("fc").startswith("0F[16]-1F[4]-")


@pytest.mark.parametrize("execution", [long({}), {"recompute": True, **LEAST}])
def test_an_elastic_layer_moves_like_any(tmp_path, monkeypatch, execution):
    """Recompute uses the setting that the forward used."""
    restless(monkeypatch)
    runs = train(
        tmp_path, elastic.images, elastic.maps, stages=(2,), steps=15, **ADAMW, execution=execution
    )
    stages = {}
    for access in read_run_accesses(runs[0].directory.path):
        stages.setdefault(access.layer, set()).add(access.stage)
    assert {len(found) for layer, found in stages.items() if layer.block in (1, 2)} == {2}


def test_a_resume_elsewhere_with_the_least_memory(tmp_path):
    kw = {"space": elastic.linears(), "options": {"momentum": 0.9}}
    first, then = {"stages": 2}, {"stages": 3, "execution": LEAST}
    found = helpers.interrupt_and_resume(tmp_path, elastic.vectors, first, then, **kw)
    whole = helpers.train(tmp_path / "whole", helpers.Calm(elastic.vectors), **kw)
    helpers.assert_identical(whole, found)
    blocks = list(kw["space"].blocks)
    blocks[0] = replace(blocks[0], settings={"width": [4, 8, 12]})
    kw["space"] = npp.Space("linears", blocks, kw["space"].decisions)
    with pytest.raises(npp.ConfigError, match=r"begun with, stem .*16\]}, found stem .*12\]}"):
        helpers.train(tmp_path / "ended", helpers.Calm(elastic.vectors), resume=True, **kw)


def test_a_stream_that_a_strategy_proposes(tmp_path, monkeypatch):
    """Subnets come while the run goes on: with what their options use."""
    restless(monkeypatch)
    space = elastic.linears()
    (run,) = check(
        tmp_path, space, elastic.vectors, LOSS, stages=(3,), steps=15, **SGD,
        sampler=Greedy(space.decisions.counts), recipe={"feedback_delay": 4},
    )  # fmt: skip
    assert len(set(run.stream)) > 5
    for choices in run.stream:
        space.decisions.drawn(choices)


def test_streams_side_by_side_keep_their_bits(tmp_path):
    """One has elastic layers, the other none; each is compared with its solo run."""
    one, other = elastic.linears(), spaces.mixed()
    given = [(one, elastic.vectors), (other, spaces.vectors)]
    how = {"steps": 10, "optimizer": "SGD", "lr": 0.05}
    runs = [npp.workload(space, data, LOSS, seed=1, **how) for space, data in given]
    how_run = {"execution": npp.Execution(stages=2), "progress": False}
    together = npp.train_together(runs, run_dir=tmp_path / "both", **how_run)
    for (space, data), run in zip(given, together, strict=True):
        alone = npp.train(
            space, data, LOSS, seed=1, run_dir=tmp_path / space.name, progress=False, **how
        )
        helpers.assert_identical(alone, run)


@pytest.mark.long
@pytest.mark.parametrize("stages", [1, 2, 4])
@pytest.mark.parametrize("optimizer", [SGD, ADAMW])
@pytest.mark.parametrize(
    ("make", "data", "loss", "rule", "passes", "execution"),
    [
        (elastic.texts, elastic.tokens, elastic.TokenLoss(), "lag(4)", "one", {}),
        (elastic.texts, elastic.tokens, elastic.TokenLoss(), "lag(4)", "subnets:8", {"groups": 2}),
        (elastic.texts, elastic.tokens, elastic.TokenLoss(), "exact", "subnets:8", LEAST),
        (elastic.linears, elastic.vectors, LOSS, "lag(4)", "sandwich:2", {"recompute": True}),
        (elastic.linears, elastic.vectors, LOSS, "exact", "subnets:8", {"groups": 2}),
        (elastic.images, elastic.maps, LOSS, "lag(4)", "sandwich:2", {"groups": 2}),
        (elastic.images, elastic.maps, LOSS, None, "sandwich:2", LEAST),
        (elastic.images, elastic.maps, LOSS, None, "subnets:8", {"groups": 2}),
        (elastic.images, elastic.maps, LOSS, None, "subnets:8", {"recompute": True, **LEAST}),
    ],
)  # fmt: skip
def test_every_kind_with_every_other(
    tmp_path, make, data, loss, rule, passes, execution, optimizer, stages
):
    rule = (parse_rule(rule),) if rule else ()
    check(
        tmp_path, make(*rule), data, loss, stages=(stages,), steps=8, **optimizer,
        recipe={"passes": passes}, execution=execution,
    )  # fmt: skip
