"""What a checkpoint costs is found within one run, too."""

from __future__ import annotations

from itertools import accumulate

import pytest

from scripts.bench_checkpoints import slowed


def test_steps_behind_a_place_are_compared_with_later_ones():
    seconds = [0.1] * 420
    seconds[100] += 0.3  # the wait for what is captured
    seconds[210] += 0.2  # and what is written takes
    seconds[230] += 0.4
    times = list(accumulate(seconds))
    assert slowed(times, 100) == pytest.approx([0.3 / 10.3, 0.6 / 10.6, 0.0])


def test_a_run_that_slows_down_later_loses_less_than_nothing():
    times = list(accumulate([0.1] * 150 + [0.2] * 50))
    assert slowed(times, 100)[0] < -0.1
    assert slowed(times[:150], 100) == []
