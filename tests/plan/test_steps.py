"""Steps of several passes, and WRITEs that wait for all gradients of their step: any timing."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from naspipe.api.simulate import ordered_in
from naspipe.config.errors import ConfigError, InvariantError
from naspipe.config.ids import LayerId, Subnet
from naspipe.config.partition import Partition
from naspipe.config.rules import Exact, Lag
from naspipe.config.steps import Steps
from naspipe.config.wiring import CHAIN
from naspipe.engine.builder import build_admission, build_controller, build_policy
from naspipe.engine.events import LAYER
from naspipe.engine.gates import StepGate
from naspipe.engine.inputs import Clearance
from naspipe.engine.invariants import violations
from naspipe.engine.versions import VersionBook
from naspipe.plan.virtual_driver import simulate
from scripts.paper.costs import RandomCosts
from tests.strategies import moving_pipelines


class Bursts(RandomCosts):
    """Some messages take many times as long as others: a connection that is made again."""

    def message_ns(self, receiver):
        return self._factor() * super().message_ns(receiver)

    def push_ns(self, layer, parcel=LAYER):
        return self._factor() * super().push_ns(layer, parcel)

    def _factor(self):
        return 50 if self._random.random() < 0.1 else 1


def run(rules, subnets, partitions, steps, seed, window=6, partly=True, buffered=None, **how):
    how |= {"starts_partly_clear": partly, "steps": steps, "buffered": buffered}
    controllers = [
        build_controller(stage, [rules], **how) for stage in range(partitions[0].num_stages)
    ]
    stages = simulate(
        lambda _, y: (subnets[y], partitions[y], None), controllers, Bursts(seed),
        lambda: [build_admission("csp", len(subnets), window=window, steps=steps)],
    )  # fmt: skip
    return [access for accesses in stages for access in accesses]


@st.composite
def stepped(draw):
    """A pipeline whose subnets are whole steps, each with one partition for all its passes."""
    rules, subnets, partitions = draw(moving_pipelines())
    passes = draw(st.integers(1, 4))
    steps = Steps(passes, draw(st.booleans()) and passes > 1, draw(st.booleans()))
    whole = max(1, len(subnets) // passes) * passes
    chains = [subnet.chain for subnet in subnets] * passes
    stream = [Subnet(0, number, chains[number]) for number in range(whole)]
    return rules, stream, [partitions[y // passes] for y in range(whole)], steps


@settings(max_examples=100)
@given(stepped(), st.integers(0, 2**32), st.integers(1, 9), st.booleans(), st.data())
def test_every_step_reads_what_was_there_before_it(pipeline, seed, window, partly, data):
    rules, subnets, partitions, steps = pipeline
    layers = sorted({s.layer(block) for s in subnets for block in range(len(rules))})
    buffered = data.draw(st.one_of(st.none(), st.sets(st.sampled_from(layers))))
    accesses = run(rules, subnets, partitions, steps, seed, window, partly, buffered)
    assert list(violations(accesses, rules, subnets, steps=steps, buffered=buffered)) == []


def test_passes_overtake_each_other_where_forwards_leave_nothing():
    """The one layer with buffers still sees them in their order."""
    rules, subnets, cuts = CONFLICT
    kept, seen = {LayerId(0, 3, 0)}, set()
    for seed in range(10):
        accesses = run(rules, subnets, cuts, Steps(4), seed, buffered=kept)
        assert list(violations(accesses, rules, subnets, steps=Steps(4), buffered=kept)) == []
        seen.update(violations(accesses, rules, subnets, steps=Steps(4)))
    assert seen, "somewhere a later pass was first"
    assert all("an earlier pass of its step" in line and "0.3.0" not in line for line in seen)
    assert {(3, 0)} <= ordered_in(accesses, Steps(4)), "as a log shows"
    in_order = {LayerId(0, *place) for place in ordered_in(accesses, Steps(4))}
    of_these = violations(accesses, rules, subnets, steps=Steps(4), buffered=in_order)
    assert list(of_these) == []


def arrive(progress, name):
    """Whoever it is for, nothing waits for more than the chain."""
    if name == CHAIN:
        work = next(each for each in progress.works() if CHAIN in each.missing)
        work.missing.remove(CHAIN)
        return (work,)
    return ()


CONFLICT = (
    [Lag(1), *[Exact()] * 4],
    [Subnet(0, y, (0, y % 2, y % 3, 0, y % 2)) for y in range(24)],
    [Partition((0, 2, 4, 5))] * 24,
)
SANDWICH = Steps(4, distills=True, is_gated=True)


def broken(steps=SANDWICH):
    """What the log shows, over some timings; a run that comes to a halt counts as well."""
    found = set()
    for seed in range(10):
        try:
            accesses = run(*CONFLICT, steps, seed)
        except InvariantError as error:
            found.add(str(error))
        else:
            found.update(violations(accesses, CONFLICT[0], CONFLICT[1], steps=steps))
    return " ".join(found)


def test_the_rules_hold_here():
    assert broken() == ""


def test_students_before_their_teacher_are_seen(monkeypatch):
    monkeypatch.setattr(Clearance, "_before", lambda *_: set())
    assert "an earlier pass of its step" in broken()
    monkeypatch.setattr(Clearance, "await_input", lambda self, work, block, name: None)
    monkeypatch.setattr(
        Clearance, "arrive_input", lambda self, progress, task, name: arrive(progress, name)
    )
    assert "had an output" in broken()


def test_a_gate_that_does_not_wait_is_seen(monkeypatch):
    monkeypatch.setattr(StepGate, "admit", lambda gate, progress, num_sums: None)
    monkeypatch.setattr(StepGate, "finish", lambda gate, progress: [])
    assert "before all gradients of its step" in broken()


def test_a_layer_that_is_written_while_passes_read_it_is_seen(monkeypatch):
    monkeypatch.setattr(VersionBook, "may_replace", lambda book, layer: True)
    assert "done with the layer" in broken(Steps(4)) or "rule" in broken(Steps(4))


def test_only_the_last_pass_of_a_layer_ends_the_step():
    book = VersionBook([[Exact()] * 2], build_policy("csp", steps=Steps(3)))
    chains = [(0, 0), (0, 1), (1, 0), (0, 0), (1, 1), (1, 1)]
    tickets = [book.admit(Subnet(0, y, chain), range(2)) for y, chain in enumerate(chains)]
    ends = [
        tuple(book.ends_step(ticket.layer, y) for ticket in of_pass.values())
        for y, of_pass in enumerate(tickets)
    ]
    assert ends == [(False, False), (True, True), (True, True), (True, True), (False, False),
                    (True, True)]  # fmt: skip
    assert [[t.reads for t in of_pass.values()] for of_pass in tickets] == [
        [-1, -1], [-1, -1], [-1, -1], [1, 2], [2, 1], [2, 1]]  # fmt: skip
    assert book.readable(tickets[5][0].layer) == (5,)


def test_the_baselines_know_no_steps():
    for policy in ("bsp", "asp"):
        with pytest.raises(ConfigError, match=f"policy {policy}: expected csp or sequential"):
            build_policy(policy, 2, Steps(2))


def test_whole_steps_are_admitted():
    admission = build_admission("csp", 12, window=7, steps=Steps(3))
    assert list(admission.open()) == [0, 1, 2, 3, 4, 5]
    assert [list(admission.retire(y)) for y in (1, 0, 2)] == [[], [], [6, 7, 8]]
    assert list(admission.reach(9)) == [9, 10, 11]
    assert list(build_admission("sequential", 12, window=7, steps=Steps(3)).open()) == [0, 1, 2]
