"""What a stage keeps does not grow with the stream, whatever its subnets wait for."""

from __future__ import annotations

import gc
from types import FunctionType, MethodType, ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from naspipe.config.ids import StageId, Subnet
from naspipe.config.partition import Partition
from naspipe.config.rules import Exact, Frozen, Lag
from naspipe.config.steps import Steps
from naspipe.engine import history as uses
from naspipe.engine.admission import Absence, AdmissionWindow, Intake
from naspipe.engine.builder import build_admission, build_controller, new_history
from naspipe.engine.events import Planned
from naspipe.plan.virtual_driver import simulate_into
from scripts.paper.costs import RandomCosts
from tests.engine.test_cuts import Spy
from tests.plan.test_causal_order import run
from tests.registries import orders_for_comparison
from tests.strategies import moving_pipelines

RULES = [Lag(3), *(Exact() for _ in range(6)), Frozen(), Lag(1), Exact()]
CUTS = [Partition((0, 4, 10)), Partition((0, 7, 10))]


def subnet(y):
    """Neighbours often share a layer; some layers are seldom used, all of them on both stages."""
    return Subnet(0, y, tuple(0 if y % 7 < 2 else y * (block + 3) // 5 % 5 for block in range(10)))


def kept(*roots):
    """The objects that are reachable, those of the code left out."""
    seen, left = {}, list(roots)
    while left:
        each = left.pop()
        if id(each) in seen or isinstance(each, type | ModuleType | FunctionType):
            continue
        seen[id(each)] = each
        left += [each.__self__] if isinstance(each, MethodType) else gc.get_referents(each)
    return len(seen)


def after(count, steps=Steps(), every=0, **how):  # noqa: B008
    moves = not any(isinstance(rule, Lag) for rule in how.get("rules", RULES))
    rules = how.pop("rules", RULES)
    controllers = [build_controller(StageId(n), [rules], steps=steps, **how) for n in range(2)]
    told = [Spy(each, every, 0, 0) if every else each for each in controllers]
    simulate_into(
        lambda access: None,
        lambda _, y: (subnet(y), CUTS[moves and y // steps.passes // 5 % 2], None),
        told, RandomCosts(1),
        lambda: [build_admission("csp", count, window=6, steps=steps)],
    )  # fmt: skip
    for spy in told if every else ():
        spy.idle()
    return kept(*controllers)


EXACT = [Exact()] * 10


@pytest.fixture
def orders():
    with orders_for_comparison():
        yield


@pytest.mark.parametrize(
    ("how", "more"),
    [
        ({}, {}),
        ({"rules": EXACT}, {}),  # layers move between the stages
        ({"rules": EXACT, "steps": Steps(2, draws_each=True, is_gated=True)}, {}),
        ({"rules": EXACT, "order": "gpipe"}, {"every": 20}),
    ],
    ids=["lag", "mirrored", "steps", "checkpoints"],
)
def test_a_controller_is_as_large_after_more_subnets(monkeypatch, orders, how, more):
    monkeypatch.setattr(uses, "_LONG", 4)  # what is kept for this long is soon as much as it gets
    few, many = after(400, **how, **more), after(1200, **how, **more)
    assert many - few < 100, "one object for each subnet were 800 more"


@settings(max_examples=100)
@given(moving_pipelines(), st.integers(0, 2**32), st.integers(1, 9))
def test_reading_users_early_changes_no_schedule(pipeline, seed, window):
    """A stage may note the users of layers that are elsewhere before it has to."""
    rules, subnets, partitions = pipeline
    given_late = run(rules, subnets, partitions, RandomCosts(seed), window)
    long, uses._LONG = uses._LONG, 1
    try:
        assert run(rules, subnets, partitions, RandomCosts(seed), window) == given_late
    finally:
        uses._LONG = long


def test_stages_that_share_a_history_keep_it():
    assert new_history([RULES]).uses.take(subnet(0).layer(0), 5) == 5


def planned(first, count):
    return [Planned(subnet(y), CUTS[0]) for y in range(first, first + count)]


def test_an_intake_keeps_what_was_not_admitted():
    intake, sizes = Intake(AdmissionWindow(4, 1000)), []
    for first in range(0, 1000, 50):
        intake.learn(first, planned(first, 50))
        assert intake.knows(first + 49) and not intake.knows(first + 50)
        for y in range(first, first + 50):
            intake.retire(y)
        assert intake.under_way == 0
        sizes.append(kept(intake))
    assert intake.is_finished and max(sizes[10:]) == sizes[-1] == sizes[10]
    assert intake.homes[subnet(3).layer(2)] == 0 and intake.homes[subnet(3).layer(5)] == 1


def test_an_intake_of_a_later_life_begins_where_it_goes_on():
    intake = Intake(AdmissionWindow(3, 20, 7), (), 7)
    assert [each.subnet.sequence_id for each in intake.learn(7, planned(7, 8))] == [7, 8, 9]
    assert [each.subnet.sequence_id for each in intake.retire(7)] == [10]
    assert not set(intake.homes) - {
        each.layer(b) for each in map(subnet, range(7, 15)) for b in range(10)
    }


def test_a_stage_that_takes_no_part_keeps_where_layers_are():
    intake = Intake(Absence(20))
    assert intake.learn(0, planned(0, 20)) == [] and intake.is_finished
    assert not intake._ahead and subnet(3).layer(2) in intake.homes
