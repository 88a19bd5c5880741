"""Checkpoints of a pipeline that goes on: each layer once, at the cut's version, in time."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from naspipe.config.errors import InvariantError
from naspipe.config.ids import INITIAL, Subnet
from naspipe.config.partition import Partition
from naspipe.config.rules import Exact, Frozen, Lag
from naspipe.engine import cuts
from naspipe.engine.admission import AdmissionWindow
from naspipe.engine.builder import build_controller, new_history
from naspipe.engine.commands import (
    CaptureLayer,
    FinishCut,
    PushVersion,
    RecordAccess,
    RetireSubnet,
    RunTask,
    WriteLayer,
)
from naspipe.engine.cuts import Cuts
from naspipe.engine.events import (
    CutAdmitted,
    KeptLayer,
    StageIdle,
    StreamResumed,
    SubnetAdmitted,
    TaskKind,
)
from naspipe.engine.invariants import violations
from naspipe.engine.versions import VersionBook
from naspipe.plan.virtual_driver import simulate
from scripts.paper.costs import RandomCosts
from tests.strategies import moving_pipelines, sees


class Spy:
    """A controller that is told of a cut before every so many subnets, and what it commands."""

    def __init__(self, controller, every, first=0, patience=0):
        self.controller, self.every, self.first = controller, every, first
        self.patience = patience
        self.commands = []

    def handle(self, event):
        commands = []
        if isinstance(event, SubnetAdmitted):
            y = event.subnet.sequence_id
            if y > self.first and y % self.every == 0:
                cut = CutAdmitted(event.time_ns, 0, y, self.patience)
                commands += self.controller.handle(cut)
        commands += self.controller.handle(event)
        self.commands += commands
        return commands

    def idle(self):
        """The driver's duty at the end: what was left for idle time is done."""
        while self.controller.is_idle_work:
            self.commands += self.controller.handle(StageIdle(0))

    @property
    def unfinished(self):
        return self.controller.unfinished


def expected_versions(rules, subnets, cut):
    """By layer, from the stream alone: what subnets from the cut on can ask for."""
    found = {}
    for subnet in subnets[:cut]:
        for block in range(len(rules)):
            found.setdefault(subnet.layer(block), [INITIAL]).append(subnet.sequence_id)
    for layer, users in found.items():
        rule = rules[layer.block]
        readers = range(cut, cut + 12)
        read = {max(v for v in users if v < 0 or sees(rule, v, reader)) for reader in readers}
        newest = INITIAL if isinstance(rule, Frozen) else users[-1]
        found[layer] = tuple(sorted(read | {newest}))
    return found


def check_stage(commands, captured):
    """Nothing of a later subnet touched a layer before its capture; notes what was captured."""
    version, touched, finished = {}, {}, set()
    for command in commands:
        match command:
            case RunTask(task, reads):
                assert all(task.sequence_id >= cut for cut in finished)
                if task.kind is TaskKind.FORWARD:
                    touched |= {layer: task.sequence_id for layer, _ in reads}
            case WriteLayer(layer, y):
                version[layer], touched[layer] = y, y
            case PushVersion(layer):
                touched[layer] = sys.maxsize  # its memory may be taken any time
            case CaptureLayer(layer, versions, cut):
                assert version.get(layer, versions[-1]) == versions[-1]
                assert touched.get(layer, INITIAL) < cut
                assert layer not in captured.setdefault(cut, {}), "captured twice"
                captured[cut][layer] = versions
            case RecordAccess(access):
                assert all(access.sequence_id >= cut for cut in finished)
            case FinishCut(_, cut):
                assert cut not in finished
                finished.add(cut)
    return finished


def run(pipeline, seed, window, every, first=0, kept=(), shares=False, patience=0):
    rules, subnets, partitions = pipeline
    num_stages = partitions[0].num_stages
    history = new_history([rules]) if shares else None
    spies = [
        Spy(
            build_controller(stage, [rules], starts_partly_clear=True, history=history),
            every, first, patience,
        )
        for stage in range(num_stages)
    ]  # fmt: skip
    if first:
        for spy in spies:
            spy.controller.handle(StreamResumed(0, 0, first, kept))
    stages = simulate(
        lambda _, y: (subnets[y], partitions[y], None), spies, RandomCosts(seed),
        lambda: [AdmissionWindow(window, len(subnets), first)],
    )  # fmt: skip
    for spy in spies:
        spy.idle()
    captured = {}
    finished = [check_stage(spy.commands, captured) for spy in spies]
    return [access for accesses in stages for access in accesses], captured, finished


@settings(max_examples=300)
@given(
    moving_pipelines(), st.integers(0, 2**32), st.integers(1, 9), st.integers(1, 5), st.booleans(),
    st.integers(0, 6),
)  # fmt: skip
def test_every_layer_is_captured_once_at_its_cut(pipeline, seed, window, every, shares, patience):
    """Also where the stages share what they know of the subnets, as the simulator's do."""
    rules, subnets, _ = pipeline
    accesses, captured, finished = run(
        pipeline, seed, window, every, shares=shares, patience=patience
    )
    assert list(violations(accesses, rules, subnets)) == []
    places = set(range(every, len(subnets), every))
    assert all(each == places for each in finished)
    assert captured == {cut: expected_versions(rules, subnets, cut) for cut in places}


@settings(max_examples=200)
@given(moving_pipelines(), st.integers(0, 2**32), st.integers(1, 9), st.integers(1, 4), st.data())
def test_a_resumed_stream_goes_on_with_the_same_versions(pipeline, seed, window, every, data):
    """On other partitions than before, and its checkpoints hold what nobody used since, too."""
    rules, subnets, partitions = pipeline
    first = data.draw(st.integers(1, len(subnets)))
    kept = tuple(
        KeptLayer(layer, versions, number % partitions[0].num_stages)
        for number, (layer, versions) in enumerate(
            sorted(expected_versions(rules, subnets, first).items())
        )
    )
    accesses, captured, finished = run(pipeline, seed, window, every, first, kept)
    assert all(access.sequence_id >= first for access in accesses)
    before, _, _ = run(pipeline, seed, window, len(subnets))
    joined = [a._replace(start_ns=a.start_ns - 10**12, end_ns=a.end_ns - 10**12) for a in before
              if a.sequence_id < first]  # fmt: skip
    assert list(violations(joined + accesses, rules, subnets)) == []
    places = {cut for cut in range(every, len(subnets), every) if cut > first}
    assert all(each == places for each in finished)
    assert captured == {cut: expected_versions(rules, subnets, cut) for cut in places}


def needless_captures(patience):
    """Captures that nothing was held up for and no idle time was used for, by subnets retired."""
    rules, subnets = (Exact(),) * 3, [Subnet(0, y, (y % 6, y % 5, y % 7)) for y in range(40)]
    spy = Spy(build_controller(0, [rules]), every=10**6)
    found, retired = [], 0

    def handle(event):
        nonlocal retired
        commands = []
        if isinstance(event, SubnetAdmitted) and event.subnet.sequence_id == 10:
            commands += spy.controller.handle(CutAdmitted(0, 0, 10, patience))
        commands += spy.controller.handle(event)
        for number, command in enumerate(commands):
            retired += isinstance(command, RetireSubnet)
            if isinstance(command, CaptureLayer):
                held_up = next((c for c in commands[number:] if not isinstance(c, CaptureLayer)), 0)
                if command.layer not in cuts._changed(held_up):
                    found.append(retired)
        return commands

    spy.handle = handle
    simulate(
        lambda _, y: (subnets[y], Partition((0, 3)), None), [spy], RandomCosts(1),
        lambda: [AdmissionWindow(4, len(subnets))],
    )  # fmt: skip
    return found


def test_captures_wait_for_idle_time_until_the_patience_ends():
    assert needless_captures(1000) == []
    assert min(needless_captures(0)) == 10
    assert min(needless_captures(3)) == 13


def small(rules):
    subnets = [Subnet(0, y, (y % 2, 0, 0)) for y in range(12)]
    return rules, subnets, [Partition((0, 1 + y % (2 - isinstance(rules[0], Lag)), 3)) for y in
                            range(12)]  # fmt: skip


def late(its, commands):
    return commands + Cuts._finish(its)


@pytest.mark.parametrize("rules", [(Exact(),) * 3, (Lag(2), Exact(), Exact())])
@pytest.mark.parametrize(
    ("target", "name", "broken"),
    [
        (Cuts, "guard", late),
        (VersionBook, "hold", VersionBook.readable),
        (Cuts, "wrote", lambda its, layer, version: None),
    ],
    ids=["captured late", "not held", "WRITE missed"],
)
def test_a_broken_rule_is_seen(monkeypatch, rules, target, name, broken):
    pipeline = small(rules)

    def check():
        _, captured, finished = run(pipeline, 3, 6, 3)
        assert captured == {cut: expected_versions(*pipeline[:2], cut) for cut in (3, 6, 9)}
        assert finished == [{3, 6, 9}] * 2

    check()
    monkeypatch.setattr(target, name, broken)
    with pytest.raises((AssertionError, InvariantError)):
        check()
