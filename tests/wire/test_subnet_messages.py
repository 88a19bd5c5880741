"""Subnets that the launcher sends while a run goes on, with the stages of their parts."""

from __future__ import annotations

from naspipe.config.ids import Subnet
from naspipe.config.partition import make_partition
from naspipe.engine.events import Planned
from naspipe.wire.messages import SubnetsMessage, launcher_frames, read_message


def test_parts_come_on_the_stages_that_they_left_for():
    planned = tuple(
        Planned(Subnet(1, 4 + number, (0, 2, 1), candidates), make_partition((0, 1, 3), stages))
        for number, (candidates, stages) in enumerate([((), ()), ((0, 1, 0), (1, 0))])
    )
    (header,) = launcher_frames(SubnetsMessage(1, 4, planned))
    message = read_message(header, [])
    assert message == SubnetsMessage(1, 4, planned)
    assert [each.partition.stage_of(0) for each in message.planned] == [0, 1]
