"""A run that gains little from its stages says why at its start, and what to change."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import naspipe as npp
from naspipe.api.planning import gain_notes
from naspipe.config.execution import Execution
from naspipe.config.ids import FIRST_STREAM, SequenceId, Subnet
from naspipe.config.recipe import Recipe
from naspipe.jobs.workload import Workload
from naspipe.plan.costs import CostTable, LayerCost
from naspipe.streams.samplers import draw_subnets


def conv():
    return nn.Conv2d(3, 8, 3)


def normed():
    return nn.Sequential(conv(), nn.BatchNorm2d(8))


def grouped():
    return nn.Sequential(conv(), nn.GroupNorm(2, 8))


def stem(rule=None, factory=conv):
    return npp.Shared("stem", factory, rule=rule or npp.Exact())


def choices(*counts):
    return [npp.Block([nn.PReLU] * count, alike=True) for count in counts or [12] * 6]


HEAD = npp.Shared("head", lambda: nn.Linear(8, 10))


def notes(*blocks, sampler="spaced:8", steps=40, recipe=None, **how):
    """With layers that all cost the same."""
    space = npp.Space("mine", [*blocks, HEAD])
    policy = how.pop("policy", "csp")
    work = Workload.of(
        space, lambda seed, number: {"input": torch.ones(1)}, nn.MSELoss(),
        recipe=Recipe(**recipe or {}), steps=steps, sampler=sampler, policy=policy,
    )  # fmt: skip
    passes = work.recipe.steps.passes
    drawn = [each for each in draw_subnets(sampler, space, 0, steps) for _ in range(passes)]
    subnets = [Subnet(FIRST_STREAM, SequenceId(n), space.chain(c)) for n, c in enumerate(drawn)]
    costs = CostTable({(block, 0): LayerCost(10, 20, 1) for block in range(len(space))})
    return gain_notes([work], Execution(**{"stages": 2, **how}), [subnets], [costs])


def only(*blocks, **how) -> str:
    (line,) = notes(*blocks, **how)
    assert "\n" not in line
    return line


def test_an_exact_stem():
    assert only(stem(), *choices()) == (
        "this run gains little from 2 stages: at most 1.0 can be busy, as every step reads layer "
        'stem (exact) behind the WRITE of the one before: use --set "rule.stem=lag(1,predict)", or '
        "frozen; this changes what is trained, see docs/rules.md"
    )


def test_a_head_that_costs_little_is_left_alone():
    """Both hold the pipeline back; what the page says of the head is so, the stem is enough."""
    costly = {"stages": 2, "sampler": "uniform"}
    said = only(stem(), *choices(*[4] * 6), **costly)
    assert "layer stem (exact)" in said and "head" not in said
    assert not notes(stem(npp.Lag(2)), *choices(*[4] * 6), **costly)


def test_an_exact_stem_with_a_norm():
    said = only(stem(factory=normed), *choices(), stages=4)
    assert (
        'use --set "rule.stem=lag(3,predict)" with --set norms=deferred, or lag(3,predict) with '
        "GroupNorm in the place of its BatchNorm2d, or frozen; this changes"
    ) in said
    for factory, recipe in ((normed, {"norms": "deferred"}), (grouped, {})):
        said = only(stem(factory=factory), *choices(), recipe=recipe)
        assert 'use --set "rule.stem=lag(1,predict)", or frozen; this changes' in said


def test_text_bears_a_longer_lag():
    said = only(stem(factory=lambda: nn.Embedding(9, 8)), *choices())
    assert 'use --set "rule.stem=lag(8)", or frozen; this changes' in said


def test_what_is_said_helps():
    for rule in (npp.Lag(1, predicts=True), npp.Lag(1, over=20, predicts=True), npp.Frozen()):
        assert notes(stem(rule), *choices()) == []
    assert notes(stem(npp.Lag(3, predicts=True)), *choices(), stages=4) == []


def test_one_candidate_is_no_choice():
    said = only(npp.Block([conv]), *choices())
    assert "as block 0 has one candidate only, so every step" in said
    assert "make it npp.Shared(NAME, ..., rule=npp.Lag(1, predicts=True))" in said


def test_the_gate_of_a_global_norm():
    recipe = {"clip_global_norm": 1.0}
    said = only(stem(npp.Lag(8)), *choices(), stages=4, recipe=recipe)
    assert "as with clip_global_norm no layer is written before all gradients" in said
    assert "use clip_layer_norm, or passes=accumulate:N" in said
    both = only(stem(), *choices(), stages=4, recipe=recipe)
    assert "layer stem (exact)" in both and "; and with clip_global_norm" in both
    assert notes(stem(npp.Lag(8)), *choices(), stages=4, recipe={"clip_layer_norm": 1.0}) == []


def test_a_plain_network():
    said = only(stem(), *choices(1, 1, 1), sampler="uniform")
    assert "every step reads all that the step before wrote; use passes=accumulate:N" in said
    passes = {"passes": "accumulate:4"}
    assert notes(stem(), *choices(1, 1, 1), sampler="uniform", recipe=passes) == []
    assert notes(
        stem(), *choices(1, 1, 1), sampler="uniform", recipe=passes, stages=1, groups=2
    ) == []  # fmt: skip


def test_neighbours_that_share_their_layers():
    said = only(stem(npp.Lag(2)), *choices(*[2] * 20), sampler="uniform")
    assert "most subnets share a layer with the one before" in said
    assert "spaced:W" in said


def test_layers_without_state_hold_nobody_back():
    skips = [npp.Block([nn.Identity] * 2, alike=True) for _ in range(20)]
    assert notes(npp.Shared("stem", nn.Flatten), *skips, sampler="uniform") == []


@pytest.mark.parametrize(
    "how",
    [{"stages": 1}, {"steps": 5}, {"policy": "bsp"}, {"policy": "asp"}, {"policy": "sequential"}],
)
def test_where_nothing_is_said(how):
    assert notes(stem(), *choices(), **how) == []


def test_a_sampler_that_cannot_space_so_far():
    assert only(stem(npp.Lag(2)), *choices(12, 4, 12, 4, 1), sampler="spaced:8") == (
        "sampler spaced:8: block 1 has 4 candidates, so one of them comes again after 3 other "
        "subnets there, not after 8; spaced:3 says so"
    )
    for fine in ("spaced:3", "uniform"):
        assert notes(stem(npp.Lag(2)), *choices(12, 4, 12, 4, 12), sampler=fine) == []
    assert notes(stem(npp.Lag(2)), *choices(12, 4), sampler="spaced:8", stages=1) == []


def test_a_lag_that_hardly_grows_before_the_end():
    grows = stem(npp.Lag(1, over=30, predicts=True))
    assert only(grows, *choices()) == (
        "layer stem is lag(0..1,over=30,predict): in the first 30 of 40 steps stages wait for it; "
        '--set "rule.stem=lag(1,predict)" is faster at once, and changes what is trained, see '
        "docs/rules.md"
    )
    assert notes(grows, *choices(), steps=60) == notes(grows, *choices(), stages=1) == []
