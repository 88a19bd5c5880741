"""Steps that begin with probes: any timing, on the simulator."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from naspipe.config.errors import InvariantError
from naspipe.config.ids import AccessKind, Subnet
from naspipe.config.partition import make_partition
from naspipe.config.rules import Exact, Frozen, Lag
from naspipe.config.steps import Steps
from naspipe.engine.builder import build_admission, build_controller
from naspipe.engine.events import Task
from naspipe.engine.history import Uses
from naspipe.engine.invariants import layer_violations, violations
from naspipe.plan.virtual_driver import KnownPasses, simulate_into
from scripts.paper.costs import RandomCosts

RULES = st.sampled_from([Exact(), Exact(), Frozen(), Lag(1), Lag(3)])


def run(rules, subnets, partition, steps, seed, window=6, partly=True):
    """All accesses, in the order of their ends."""
    how = {"starts_partly_clear": partly, "steps": steps}
    stages = [build_controller(s, [rules], **how) for s in range(partition.num_stages)]
    found = []
    simulate_into(
        found.append, lambda _, y: (subnets[y], partition, None, not steps.is_probe(y)), stages,
        RandomCosts(seed),
        lambda: [build_admission("csp", len(subnets), window=window, steps=steps)],
        known=KnownPasses(steps, [len(rules)]),
    )  # fmt: skip
    return found


@st.composite
def probed(draw):
    """Rules, subnets of whole steps, a partition, and what a step is made of."""
    rules = draw(st.lists(RULES, min_size=2, max_size=6))
    is_shared = [not isinstance(rule, Exact) or draw(st.booleans()) for rule in rules]
    trained, probes = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    distills = draw(st.booleans()) and trained > 1
    steps = Steps(trained + probes, probes=probes, distills=distills, is_gated=draw(st.booleans()))
    choice = [st.just(0) if shared else st.integers(0, 2) for shared in is_shared]
    chains = draw(st.lists(st.tuples(*choice), min_size=steps.passes, max_size=24))
    whole = len(chains) // steps.passes * steps.passes
    cuts = draw(st.sets(st.integers(1, len(rules) - 1), max_size=3))
    partition = make_partition((0, *sorted(cuts), len(rules)))
    return rules, [Subnet(0, y, chains[y]) for y in range(whole)], partition, steps


@settings(max_examples=100)
@given(probed(), st.integers(0, 2**32), st.integers(1, 9), st.booleans())
def test_probes_read_what_was_there_and_leave_nothing(pipeline, seed, window, partly):
    rules, subnets, partition, steps = pipeline
    accesses = run(rules, subnets, partition, steps, seed, window, partly)
    assert list(violations(accesses, rules, subnets, steps=steps)) == []
    for step in range(len(subnets) // steps.passes):
        own = [each for each in accesses if steps.step(each.sequence_id) == step]
        looked = [each for each in own if steps.is_probe(each.sequence_id)]
        assert {each.kind for each in looked} == {AccessKind.FORWARD}
        assert len(looked) == steps.probes * len(rules)
        trained = [each.start_ns for each in own if not steps.is_probe(each.sequence_id)]
        assert min(trained) >= max(each.end_ns for each in looked)


CONFLICT = (
    [Lag(1), Exact(), Exact()], [Subnet(0, y, (0, y % 2, 0)) for y in range(24)],
    make_partition((0, 1, 3)), Steps(4, probes=2),
)  # fmt: skip


def everyone_writes(self, subnet, writes=True):
    own_note(self, subnet)


own_note = Uses.note


def test_probes_among_the_writers_are_seen(monkeypatch):
    monkeypatch.setattr(Uses, "note", everyone_writes)
    rules, subnets, _, steps = CONFLICT
    with pytest.raises((InvariantError, AssertionError)):
        assert not list(violations(run(*CONFLICT, 1), rules, subnets, steps=steps))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": 3}, "expected to read version 7"),
        ({"start_ns": 0}, "began before version 7 was written"),
        ({"end_ns": 1 << 60}, "a later WRITE began before it was over"),
        ({"kind": AccessKind.BACKWARD}, "accesses are missing or not of this stream"),
    ],
)
def test_a_log_with_a_wrong_probe(change, said):
    steps = CONFLICT[3]
    own = [each for each in run(*CONFLICT, 1) if each.layer.block == 2]
    place = next(n for n, each in enumerate(own) if each.sequence_id == 8)
    own[place] = own[place]._replace(**change)
    found = layer_violations(
        own[0].layer, Exact(), list(range(24)), own, "csp", 1, steps, is_ordered=True
    )
    assert any(said in line for line in found)


def test_what_follows_is_told_by_way_of_the_launcher():
    """Two messages behind the end of the last probe, wherever that is."""
    rules, subnets, partition, steps = CONFLICT

    class Slow(RandomCosts):
        def message_ns(self, receiver: Task) -> int:
            return 1_000_000

    stages = [build_controller(s, [rules], steps=steps) for s in range(2)]
    found = []
    simulate_into(
        found.append, lambda _, y: (subnets[y], partition, None, not steps.is_probe(y)), stages,
        Slow(1), lambda: [build_admission("csp", 24, window=4, steps=steps)],
        known=KnownPasses(steps, [3]),
    )  # fmt: skip
    ends = max(each.end_ns for each in found if each.sequence_id < 2)
    starts = min(each.start_ns for each in found if each.sequence_id in (2, 3))
    assert starts - ends >= 2_000_000
