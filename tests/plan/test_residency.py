"""Under any memory budget that is accepted: the same order, no deadlock, nothing over budget."""

from __future__ import annotations

from typing import NamedTuple
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from naspipe.config.errors import InvariantError
from naspipe.config.ids import AccessKind, Subnet
from naspipe.config.partition import Partition
from naspipe.config.rules import Exact, steps_behind
from naspipe.config.steps import ONE_PASS
from naspipe.engine.builder import build_admission, build_controller
from naspipe.engine.invariants import violations
from naspipe.engine.ledger import Ledger
from naspipe.engine.predictor import Predictor
from naspipe.engine.residency import ResidencyManager
from naspipe.plan.virtual_driver import simulate
from naspipe.store.metrics import summarize
from scripts.paper.costs import BlockCosts, RandomCosts
from tests.strategies import moving_pipelines


class Size(NamedTuple):
    state_bytes: int
    writes_forward: bool


class Sizes:
    """A few bytes each; every third layer writes in its forward."""

    def of(self, block, candidate, stream=0):
        return Size(1 + (block * 7 + candidate * 5) % 9, (block + candidate) % 3 == 0)


def run(
    rules, subnets, partitions, costs, extra, *, window=6, prefetches=True, order="paper",
    steps=ONE_PASS, permanent=(), **how,
):  # fmt: skip
    """Simulate with the least budget of each stage plus ``extra`` bytes."""
    permanent = {b for b, rule in enumerate(rules) if steps_behind(rule) is not None} | {*permanent}
    managers = []
    for stage in range(partitions[0].num_stages):
        used = {
            subnet.layer(block)
            for subnet, partition in zip(subnets, partitions, strict=True)
            for block in partition.blocks(stage)
        }
        sizes = {layer: Sizes().of(layer.block, layer.candidate).state_bytes for layer in used}
        fixed = sum(size for layer, size in sizes.items() if layer.block in permanent)
        largest = max((s for layer, s in sizes.items() if layer.block not in permanent), default=0)
        managers.append(
            ResidencyManager(
                fixed + largest + extra,
                Sizes(),
                {(0, block) for block in permanent},
                prefetches=prefetches,
            )
        )
    controllers = [
        build_controller(
            stage, [rules], residency=manager, starts_partly_clear=True, order=order, steps=steps,
            **how,
        )
        for stage, manager in enumerate(managers)
    ]  # fmt: skip
    stages = simulate(
        lambda _, y: (subnets[y], partitions[y], None), controllers, costs,
        lambda: [build_admission("csp", len(subnets), window=window, steps=steps)],
    )  # fmt: skip
    return [access for accesses in stages for access in accesses], managers


@settings(max_examples=300, deadline=None)
@given(
    moving_pipelines(), st.integers(0, 2**32), st.integers(0, 30), st.booleans(),
    st.sampled_from(["paper", "critical-path"]),
)  # fmt: skip
def test_any_budget_gives_the_same_order(pipeline, seed, extra, prefetches, order):
    """No reachable state deadlocks: simulate() raises when a stage stops early."""
    rules, subnets, partitions = pipeline
    accesses, _ = run(
        rules, subnets, partitions, RandomCosts(seed), extra, prefetches=prefetches, order=order
    )
    assert list(violations(accesses, rules, subnets)) == []


def commanded(knows_news, pipeline, seed, extra, order, **how):
    """What every stage is told to load, save and evict, in order."""
    told, plan, forecast = [], ResidencyManager.plan, Predictor.forecast

    def planned(self, look_ahead, is_demanded=False, token=None):
        found = plan(self, look_ahead, is_demanded, token if knows_news else None)
        told.extend((id(self), command) for command in found)
        return found

    def foreseen(self, due, subnets, running, token=None):
        return forecast(self, due, subnets, running, token if knows_news else None)

    with (
        patch.object(ResidencyManager, "plan", planned),
        patch.object(Predictor, "forecast", foreseen),
    ):
        _, managers = run(*pipeline, RandomCosts(seed), extra, order=order, **how)
    stages = {id(manager): stage for stage, manager in enumerate(managers)}
    return [(stages[manager], command) for manager, command in told]


@settings(max_examples=200, deadline=None)
@given(
    moving_pipelines(), st.integers(0, 2**32), st.integers(0, 30),
    st.sampled_from(["paper", "critical-path"]),
)  # fmt: skip
def test_a_look_that_is_left_out_would_have_found_nothing(pipeline, seed, extra, order):
    """The controller's count of news, beside looking ahead anew after every event."""
    plain = commanded(False, pipeline, seed, extra, order)
    assert commanded(True, pipeline, seed, extra, order) == plain


@settings(max_examples=100, deadline=None)
@given(moving_pipelines(), st.integers(0, 2**32), st.integers(0, 30))
def test_what_may_be_used_is_what_subnets_under_way_need(pipeline, seed, extra):
    """All that is ever foreseen is needed, and nothing is when the last subnet is through."""
    predictors, forecast = set(), Predictor.forecast

    def foreseen(self, *args):
        predictors.add(self)
        found = forecast(self, *args)
        assert all(map(found.may_use, found))
        return found

    with patch.object(Predictor, "forecast", foreseen):
        accesses, _ = run(*pipeline, RandomCosts(seed), extra)
    for predictor in predictors:
        rest = forecast(predictor, (), (), None)
        assert not [access.layer for access in accesses if rest.may_use(access.layer)]


STREAM = (
    [Exact()] * 8,
    [Subnet(0, y, tuple((y * 3 + b) % 7 for b in range(8))) for y in range(40)],
    [Partition((0, 4, 8))] * 40,
)


def summary_of(extra, **options):
    costs = BlockCosts(
        forward_ns={(b, c): 1000 for b in range(8) for c in range(7)},
        swap_ns={(b, c): 300 for b in range(8) for c in range(7)},
    )
    accesses, _ = run(*STREAM, costs, extra, **options)
    return summarize(accesses, 2)


def test_a_budget_for_everything_never_waits_twice():
    assert summary_of(10_000).hit_rate > 0.97


def test_the_predictor_makes_loads_invisible():
    with_it, without = summary_of(40), summary_of(40, prefetches=False)
    assert with_it.hit_rate > 0.9 > 0.5 > without.hit_rate
    assert with_it.stall_ratio < 0.03 < without.stall_ratio


def test_stalls_are_what_the_log_says():
    """One subnet, one layer at a time: each of its accesses waits for one load."""
    costs = BlockCosts(forward_ns={(b, 0): 1000 for b in range(3)},
                       swap_ns={(b, 0): 300 for b in range(3)})  # fmt: skip
    accesses, _ = run([Exact()] * 3, [Subnet(0, 0, (0, 0, 0))], [Partition((0, 3))], costs, 0)
    waits = [
        (a.kind.value, a.layer.block, a.stalled_ns)
        for a in accesses if a.kind is not AccessKind.WRITE
    ]  # fmt: skip
    # The forward of block 0 wrote its buffers, so it has to be saved before block 1 fits.
    assert waits[:3] == [("F", 0, 300), ("F", 1, 600), ("F", 2, 300)]
    assert waits[3] == ("B", 2, 0), "its layer is still there"


def test_evicting_a_dirty_layer_is_refused(monkeypatch):
    """Break the rule that only clean layers go: the ledger must stop it."""
    monkeypatch.setattr(ResidencyManager, "release", lambda self, layer, kind: None)
    with pytest.raises(InvariantError):
        summary_of(20)


def test_loading_a_version_that_is_away_is_refused(monkeypatch):
    """A stale mirror must never be read: pretend that versions never have to be waited for."""
    from naspipe.engine.versions import VersionBook

    monkeypatch.setattr(VersionBook, "exists", lambda book, layer, version: True)
    moving = [Partition((0, 2 + y % 4, 8)) for y in range(40)]
    close = [Subnet(0, y, (y % 2,) * 8) for y in range(40)]
    with pytest.raises(InvariantError):
        run(STREAM[0], close, moving, RandomCosts(1), 10)


def test_the_ledger_is_used(monkeypatch):
    """Were the budget not looked at, more would be loaded than it holds."""
    monkeypatch.setattr(Ledger, "evict", lambda self, layer: None)
    with pytest.raises(InvariantError):
        summary_of(0)
