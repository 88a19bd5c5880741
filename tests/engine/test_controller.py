"""The controller on events written by hand: exactly these commands, and what it refuses."""

from __future__ import annotations

import pytest

from naspipe.config.errors import InvariantError
from naspipe.config.ids import Access, AccessKind, LayerId, Subnet
from naspipe.config.partition import Partition
from naspipe.config.rules import Exact
from naspipe.engine.builder import build_controller
from naspipe.engine.commands import (
    RecordAccess,
    RetireSubnet,
    RunTask,
    SendOutput,
    WriteLayer,
)
from naspipe.engine.events import (
    BlockFinished,
    InputArrived,
    SubnetAdmitted,
    WriteFinished,
    parse_task,
)
from tests.engine.replay import replay


def layer(block, candidate):
    return LayerId(0, block, candidate)


class Driver:
    """Tells a controller events in short words; every event takes 10 ns."""

    def __init__(self, stage, bounds, rules=None, partly=False):
        self.partition = Partition(bounds)
        self.stage, self.now = stage, 0
        chosen = rules or [Exact()] * bounds[-1]
        self.controller = build_controller(stage, [chosen], starts_partly_clear=partly)
        self.told = []
        self.next = 0

    def tell(self, event):
        self.told.append(event)
        return self.controller.handle(event)

    def admit(self, *chain):
        subnet = Subnet(0, self.next, chain)
        self.next += 1
        return self.tell(SubnetAdmitted(self.now, subnet, self.partition))

    def input(self, text):
        return self.tell(
            InputArrived(self.now, parse_task(f"0.{text[:-1]}{text[-1]}@{self.stage}"))
        )

    def block(self, text, block):
        start, self.now = self.now, self.now + 10
        task = parse_task(f"0.{text[:-1]}{text[-1]}@{self.stage}")
        return self.tell(BlockFinished(self.now, task, block, start))

    def written(self, block, candidate, user, digest=""):
        start, self.now = self.now, self.now + 10
        return self.tell(WriteFinished(self.now, layer(block, candidate), user, start, digest))

    def record(self, block, candidate, user, kind, version, digest=""):
        """The record of what has just ended."""
        access = Access(
            layer(block, candidate), user, AccessKind(kind), version, self.stage,
            self.now - 10, self.now, 0, digest,
        )  # fmt: skip
        return RecordAccess(access)


def runs(text, *reads):
    return RunTask(
        parse_task(text), tuple((layer(block, candidate), v) for block, candidate, v in reads)
    )


def sends(text, *upcoming):
    return SendOutput(parse_task(text), tuple(map(parse_task, upcoming)))


def test_one_subnet_on_one_stage():
    """The last stage's backward needs no input; WRITEs go behind a run and before the next one."""
    d = Driver(0, (0, 2))
    assert d.admit(1, 0) == [runs("0.0F@0", (0, 1, -1), (1, 0, -1))]
    assert d.block("0F", 0) == [d.record(0, 1, 0, "F", -1)]
    backward = runs("0.0B@0", (1, 0, -1), (0, 1, -1))
    assert d.block("0F", 1) == [d.record(1, 0, 0, "F", -1), backward]
    assert d.block("0B", 1) == [d.record(1, 0, 0, "B", -1)]
    assert d.block("0B", 0) == [
        d.record(0, 1, 0, "B", -1),
        WriteLayer(layer(1, 0), 0, -1, False),
        WriteLayer(layer(0, 1), 0, -1, False),
    ]
    assert d.written(1, 0, 0, "abc") == [d.record(1, 0, 0, "W", 0, "abc")]
    assert d.written(0, 1, 0) == [d.record(0, 1, 0, "W", 0), RetireSubnet(0, 0)]
    assert d.controller.unfinished == []


def test_the_middle_one_of_three_stages():
    d = Driver(1, (0, 1, 3, 4))
    assert d.admit(0, 1, 2, 0) == []
    assert d.input("0F") == [runs("0.0F@1", (1, 1, -1), (2, 2, -1))]
    assert d.block("0F", 1) == [d.record(1, 1, 0, "F", -1)]
    assert d.block("0F", 2) == [sends("0.0F@2"), d.record(2, 2, 0, "F", -1)]
    assert d.controller.unfinished == ["0.0B@1 has no input"]
    assert d.input("0B") == [runs("0.0B@1", (2, 2, -1), (1, 1, -1))]
    d.block("0B", 2)
    assert d.block("0B", 1) == [
        sends("0.0B@0"),
        d.record(1, 1, 0, "B", -1),
        WriteLayer(layer(2, 2), 0, -1, False),
        WriteLayer(layer(1, 1), 0, -1, False),
    ]
    assert d.controller.unfinished == ["0.0B@1 waits for 2 WRITEs before its own"]
    assert d.written(2, 2, 0) == [d.record(2, 2, 0, "W", 0)]
    assert d.written(1, 1, 0) == [d.record(1, 1, 0, "W", 0), RetireSubnet(0, 0)]


def test_a_read_waits_for_the_write_of_its_previous_user():
    d = Driver(0, (0, 1, 2))
    assert d.admit(0, 0) == [runs("0.0F@0", (0, 0, -1))]
    assert d.admit(0, 0) == []
    assert d.block("0F", 0) == [sends("0.0F@1"), d.record(0, 0, 0, "F", -1)]
    assert d.controller.unfinished == ["0.0B@0 has no input", "0.1F@0 waits for 0:0.0v0"]
    assert d.input("0B") == [runs("0.0B@0", (0, 0, -1))]
    d.block("0B", 0)
    after = [d.written(0, 0, 0), d.record(0, 0, 0, "W", 0)]
    assert after[0] == [after[1], RetireSubnet(0, 0), runs("0.1F@0", (0, 0, 0))]


def test_a_later_subnet_without_a_conflict_overtakes():
    d = Driver(0, (0, 1, 2))
    d.admit(0, 0), d.admit(0, 1), d.admit(1, 2)
    assert d.block("0F", 0)[-1] == runs("0.2F@0", (0, 1, -1))


def test_backward_before_forward_then_the_older_subnet():
    d = Driver(0, (0, 1, 2))
    for candidate in range(4):
        d.admit(candidate, candidate)
    assert d.block("0F", 0)[-1] == runs("0.1F@0", (0, 1, -1))
    assert d.block("1F", 0)[-1] == runs("0.2F@0", (0, 2, -1))
    assert d.input("1B") == [] and d.input("0B") == []
    assert d.block("2F", 0)[-1] == runs("0.0B@0", (0, 0, -1))
    write = WriteLayer(layer(0, 0), 0, -1, False)
    assert d.block("0B", 0)[-1] == write, "nothing starts before its WRITE"
    assert d.written(0, 0, 0)[-1] == runs("0.1B@0", (0, 1, -1))
    d.block("1B", 0)
    assert d.written(0, 1, 1)[-1] == runs("0.3F@0", (0, 3, -1))


def start_of_two(partly):
    """Subnets (0, 0, ...) and (1, 0, ...): the second is clear in block 0 but not in block 1."""
    d = Driver(0, (0, 2, 4), partly=partly)
    d.admit(0, 0, 0, 0), d.admit(1, 0, 1, 1)
    d.block("0F", 0)
    return d, d.block("0F", 1)


def test_a_partly_clear_forward_starts_with_what_is_clear():
    d, commands = start_of_two(partly=True)
    assert commands == [
        sends("0.0F@1", "0.1F@1"),
        d.record(1, 0, 0, "F", -1), runs("0.1F@0", (0, 1, -1)),
    ]  # fmt: skip
    assert d.block("1F", 0) == [d.record(0, 1, 1, "F", -1)]
    assert d.controller.unfinished[1] == "0.1F@0 waits for 0:1.0v0"
    assert d.input("0B") == [runs("0.0B@0", (1, 0, -1), (0, 0, -1))]
    d.block("0B", 1), d.block("0B", 0)
    assert d.written(1, 0, 0) == [d.record(1, 0, 0, "W", 0)], "another WRITE is under way"
    assert d.written(0, 0, 0)[-1] == runs("0.1F@0", (1, 0, 0)), "then the rest of 1F"
    assert d.block("1F", 1)[0] == sends("0.1F@1")


def test_the_papers_rule_waits_until_all_blocks_are_clear():
    d, commands = start_of_two(partly=False)
    assert commands == [sends("0.0F@1"), d.record(1, 0, 0, "F", -1)]
    d.input("0B"), d.block("0B", 1), d.block("0B", 0), d.written(1, 0, 0)
    assert d.written(0, 0, 0)[-1] == runs("0.1F@0", (0, 1, -1), (1, 0, 0))


def test_a_run_ends_before_the_first_block_that_is_not_clear():
    """Whatever is clear behind it: blocks run in order."""
    d = Driver(0, (0, 3, 4), partly=True)
    d.admit(0, 0, 0, 0), d.admit(1, 0, 1, 1)
    d.block("0F", 0), d.block("0F", 1)
    assert d.block("0F", 2)[-1] == runs("0.1F@0", (0, 1, -1))
    d.block("1F", 0), d.input("0B"), d.block("0B", 2), d.block("0B", 1), d.block("0B", 0)
    d.written(2, 0, 0), d.written(1, 0, 0)
    assert d.written(0, 0, 0)[-1] == runs("0.1F@0", (1, 0, 0), (2, 1, -1))


def test_a_replay_gives_the_same_commands():
    d, _ = start_of_two(partly=True)
    d.block("1F", 0), d.input("0B"), d.block("0B", 1), d.block("0B", 0), d.written(1, 0, 0)
    again = build_controller(0, [[Exact()] * 4], starts_partly_clear=True)
    each = [again.handle(event) for event in d.told]
    fresh = build_controller(0, [[Exact()] * 4], starts_partly_clear=True)
    assert list(replay(fresh, d.told)) == [command for commands in each for command in commands]


def running():
    """Stage 0 of 2: subnet 0 is in its forward, subnet 1 waits for it."""
    d = Driver(0, (0, 2, 3))
    d.admit(0, 0, 0), d.admit(0, 0, 0)
    return d


@pytest.mark.parametrize(
    ("tell", "message"),
    [
        (lambda d: d.block("0F", 1), "0.0F@0: block 1 finished, but it was not running"),
        (lambda d: d.block("0B", 0), "0.0B@0: block 0 finished, but it was not running"),
        (lambda d: d.block("1F", 0), "0.1F@0: block 0 finished, but it was not running"),
        (lambda d: d.block("7F", 0), "0.7F@0: block 0 finished, but it was not running"),
        (lambda d: d.input("0F"), "0.0F@0: its input chain arrived, expected nothing"),
        (
            lambda d: (d.input("0B"), d.input("0B")),
            "0.0B@0: its input chain arrived, expected nothing",
        ),
        (lambda d: d.input("2F"), "stage 0: subnet 0.2 is not under way here"),
        (lambda d: d.written(0, 0, 2), "stage 0: subnet 0.2 is not under way here"),
        (lambda d: d.written(0, 0, 1), "WRITE 1 finished, but was not under way"),
        (lambda d: d.tell(d.told[1]), "subnet 0.1 admitted out of order: expected sequence ID 2"),
    ],
)
def test_events_that_do_not_fit(tell, message):
    with pytest.raises(InvariantError) as caught:
        tell(running())
    assert message in str(caught.value)


def test_a_block_that_finished_twice():
    d = running()
    d.block("0F", 0)
    with pytest.raises(InvariantError, match="block 0 finished, but it was not running"):
        d.block("0F", 0)


def test_nothing_is_known_of_a_retired_subnet():
    d = Driver(0, (0, 1))
    d.admit(0), d.block("0F", 0), d.block("0B", 0), d.written(0, 0, 0)
    for tell in (lambda: d.input("0B"), lambda: d.written(0, 0, 0)):
        with pytest.raises(InvariantError, match=r"subnet 0\.0 is not under way here"):
            tell()


@pytest.mark.parametrize(
    "tell",
    [
        pytest.param(lambda d: d.written(0, 0, 0), id="a WRITE that was never asked for"),
        pytest.param(lambda d: d.written(0, 5, 0), id="a WRITE of a layer it does not use"),
        pytest.param(lambda d: d.written(2, 0, 0), id="a WRITE of another stage's layer"),
        pytest.param(
            lambda d: d.tell(InputArrived(0, parse_task("0.1B@7"))), id="another stage's input"
        ),
    ],
)
def test_events_that_fit_nothing_under_way(tell):
    with pytest.raises(InvariantError):
        tell(running())
