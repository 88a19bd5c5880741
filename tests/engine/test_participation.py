"""Which stages hear of a stream."""

from __future__ import annotations

from naspipe.config.partition import Partition, make_partition
from naspipe.config.wiring import StreamWiring, Tap, TapRole, Wiring
from naspipe.engine.history import participants


def test_those_with_blocks_and_those_at_the_other_end_of_a_tap():
    streams = [
        [make_partition(each)] for each in ((0, 2, 2, 2, 2), (0, 0, 1, 1, 1), (0, 0, 0, 0, 3))
    ]
    assert participants(streams, Wiring(), 4) == [{0}, {1}, {3}]
    wiring = Wiring(taps=(Tap((1, 0), (0, 1), TapRole.LESSON),))
    assert participants(streams, wiring, 4) == [{0, 1}, {0, 1}, {3}]


def test_whoever_is_taught_is_known_wherever_the_teacher_is():
    """The student's checkpoints rely on what is logged of the teacher there."""
    streams = [[make_partition((0, 0, 0, 2))], [make_partition((0, 1, 2, 2))]]
    tap = Tap((1, 1), (0, 1), TapRole.LESSON)
    assert participants(streams, Wiring(taps=(tap,)), 3) == [{1, 2}, {0, 1, 2}]
    teaches = (StreamWiring(), StreamWiring(is_trained=False))
    assert participants(streams, Wiring(streams=teaches, taps=(tap,)), 3) == [{0, 1, 2}] * 2


def test_a_stream_that_is_not_known_yet_may_come_to_any():
    taught = [make_partition((0, 0, 1))]
    wiring = Wiring(taps=(Tap((1, 0), (0, 0), TapRole.LESSON),))
    assert participants([(), taught], wiring, 2) == [{0, 1}, {1}]


def test_blocks_of_any_subnet_count():
    cuts = [make_partition((0, 1, 1, 2)), make_partition((0, 0, 2, 2))]
    assert participants([cuts], Wiring(), 3) == [{0, 1, 2}]


def test_a_pass_that_is_left_out_is_nowhere():
    cuts = [make_partition((0, 1, 2)), Partition((0, 0, 0))]
    wiring = Wiring(taps=(Tap((1, 1), (0, 0), TapRole.LESSON),))
    assert participants([[make_partition((0, 1, 1))], cuts], wiring, 2) == [{0, 1}, {0, 1}]
