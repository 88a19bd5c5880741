"""WRITEs that have a priority take their turn among the tasks."""

from __future__ import annotations

import pytest

from naspipe.config.ids import Subnet
from naspipe.config.partition import Partition
from naspipe.config.rules import Exact
from naspipe.engine import writes
from naspipe.engine.builder import build_controller
from naspipe.engine.commands import RunTask, WriteLayer
from naspipe.engine.events import BlockFinished, Priorities, SubnetAdmitted, TaskKind, WriteFinished

BLOCKS = 3


class Stage:
    """The only stage: what it is commanded ends before anything else happens."""

    def __init__(self, splits=False):
        self.controller = build_controller(
            0, [[Exact()] * BLOCKS], order="latest-start", splits=splits
        )
        self.commanded, self.done = [], []

    def tell(self, event):
        commands = self.controller.handle(event)
        self.commanded += [each for each in commands if isinstance(each, RunTask | WriteLayer)]

    def admit(self, y, *candidates, **rows):
        """A subnet, of one candidate everywhere or of one for each block; levels of its forwards,
        backwards and WRITEs, block by block."""
        subnet = Subnet(0, y, candidates * BLOCKS if len(candidates) == 1 else candidates)
        self.tell(SubnetAdmitted(0, subnet, Partition((0, BLOCKS)), Priorities(**rows)))

    def carry_out(self):
        """The next command; blocks have one access each here."""
        command = self.commanded.pop(0)
        if isinstance(command, WriteLayer):
            self.done.append(f"W{command.sequence_id}.{command.layer.block}")
            self.tell(WriteFinished(0, command.layer, command.sequence_id, 0))
            return
        task, ((layer, _),) = command.task, command.reads
        kind = "F" if task.kind is TaskKind.FORWARD else "B"
        self.done.append(f"{kind}{task.sequence_id}.{layer.block}")
        self.tell(BlockFinished(0, task, layer.block, 0))

    def finish(self):
        while self.commanded:
            self.carry_out()
        assert self.controller.unfinished == []
        return self.done


FIRST = {"forward": (90, 89, 88), "backward": (85, 86, 87)}
FIRST_ENDS = ["F0.0", "F0.1", "F0.2", "B0.2", "B0.1", "B0.0"]
SECOND = {"forward": (60, 59, 58), "backward": (55, 56, 57)}
SECOND_BLOCKS = ["F1.0", "F1.1", "F1.2", "B1.2", "B1.1", "B1.0"]


def two(candidate, *rows, splits=False):
    stage = Stage(splits)
    for y, (levels, write) in enumerate(zip((FIRST, SECOND), rows, strict=True)):
        stage.admit(y, y * candidate, **levels, write=write)
    return stage


def test_a_write_that_nobody_waits_for_comes_behind_the_tasks():
    done = two(1, (9, 8, 7), (3, 2, 1)).finish()
    assert done == [*FIRST_ENDS, *SECOND_BLOCKS, *(f"W{y}.{b}" for y in (0, 1) for b in range(3))]


def test_a_write_goes_before_tasks_of_lesser_priority():
    done = two(1, (9, 80, 7), (3, 2, 1)).finish()
    assert done[:7] == [*FIRST_ENDS, "W0.1"]


def test_what_waits_for_a_write_runs_behind_it():
    """Subnet 1 has the same layers: the WRITEs come in the order in which it needs them."""
    done = two(0, (70, 69, 68), (3, 2, 1)).finish()
    assert done[:9] == [*FIRST_ENDS, "W0.0", "W0.1", "W0.2"]


def test_without_priorities_each_write_is_next():
    done = two(1, (), ()).finish()
    assert done[:9] == ["F0.0", "F0.1", "F0.2", "B0.2", "W0.2", "B0.1", "W0.1", "B0.0", "W0.0"]


@pytest.mark.parametrize(("limit", "splits"), [("MOST_DUE", False), ("MOST_OWED", True)])
def test_only_so_many_writes_wait(limit, splits, monkeypatch):
    monkeypatch.setattr(writes, limit, 1)
    done = two(1, (9, 8, 7), (3, 2, 1), splits=splits).finish()
    assert done[:8] == ["F0.0", "F0.1", "F0.2", "B0.2", "B0.1", "W0.1", "B0.0", "W0.0"]


def test_where_nothing_is_ready_one_write_begins_at_a_time():
    """What comes meanwhile is looked at before the next one."""
    stage = Stage()
    stage.admit(0, 0, **FIRST, write=(9, 8, 7))
    while len(stage.done) < len(FIRST_ENDS):
        stage.carry_out()
    assert [each.layer.block for each in stage.commanded] == [0]
    stage.admit(1, 1, **SECOND, write=(3, 2, 1))
    assert len(stage.commanded) == 1, "nothing begins before the WRITE is over"
    assert stage.finish()[6:8] == ["W0.0", "F1.0"]


@pytest.mark.parametrize("count", [1, 3])
def test_writes_of_greater_priority_begin_together(count):
    write = tuple(72 - block if block < count else 1 for block in range(BLOCKS))
    stage = two(1, write, (3, 2, 1))
    while len(stage.done) < len(FIRST_ENDS):
        stage.carry_out()
    assert [each.layer.block for each in stage.commanded] == list(range(count))


@pytest.mark.parametrize(
    ("splits", "then"),
    [(False, ["W0.0", "W0.1", "W0.2", "F1.0"]), (True, ["W0.0", "F1.0", "F1.1", "F1.2"])],
)
def test_with_split_backwards_what_a_write_makes_ready_goes_before_the_next_one(splits, then):
    """Subnet 1 waits for a layer of subnet 0, and subnet 2 is ready with a lower priority."""
    stage = Stage(splits)
    stage.admit(0, 0, **FIRST, write=(75, 40, 30))
    stage.admit(1, 0, 1, 1, **SECOND, write=(3, 2, 1))
    stage.admit(2, 2, forward=(12, 11, 10), backward=(7, 8, 9), write=(3, 2, 1))
    assert stage.finish()[6:10] == then
