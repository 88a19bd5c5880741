"""What a stage hands on, and what it says comes next."""

from __future__ import annotations

from naspipe.config.ids import Subnet
from naspipe.config.partition import make_partition
from naspipe.engine.controller import hand_on
from naspipe.engine.events import SubnetAdmitted
from naspipe.engine.work import begin_subnet

ORDERS = [(0, 1, 2), (0, 1, 2), (0, 2, 1), (1, 2, 0), (2, 0, 1), (0, 1, 2), (0, 1, 2)]
"""On which stage each part of a subnet is."""


def begun():
    found = []
    for number, stages in enumerate(ORDERS):
        partition = make_partition((0, 1, 2, 3), stages)
        admitted = SubnetAdmitted(0, Subnet(0, number, (0, 0, 0)), partition, None, True)
        found.append(begin_subnet(admitted, 0, {}, [range(3)]))
    return found


def test_what_comes_next_is_what_goes_to_the_same_stage():
    works = [progress.forward for progress in begun()]
    queue = [((number,), work) for number, work in enumerate(works)][1:]
    output = hand_on(works[0], queue)
    assert (output.receiver.sequence_id, output.receiver.stage) == (0, 1)
    upcoming = [(task.sequence_id, task.stage) for task in output.upcoming]
    assert upcoming == [(1, 1), (4, 1)], "2 goes to stage 2, and 3 ends here"
    assert hand_on(works[3], queue) is None


def test_gradients_go_to_the_stage_of_the_block_before():
    backwards = [progress.backwards[0] for progress in begun()]
    receivers = [work.receiver and work.receiver.stage for work in backwards]
    assert receivers == [None, None, None, 2, 2, None, None]
    assert [work.begins_here for work in backwards] == [each[2] == 0 for each in ORDERS]
