"""Ratios of runs in alternation are taken pair by pair."""

from __future__ import annotations

import pytest

from naspipe.config.errors import ConfigError
from scripts import bench_pairs


def side(seconds, speed, processor):
    return {
        "seconds": seconds, "steps_per_second": speed, "processor_seconds": processor,
    }  # fmt: skip


def test_ratios_are_right_over_left_of_each_pair():
    pairs = [
        {"left": side(10.0, 4.0, 8.0), "right": side(11.0, 3.6, 8.0)},
        {"left": side(20.0, 2.0, 9.0), "right": side(18.0, 2.2, 9.9)},
        {"left": side(10.0, 4.0, 8.0), "right": side(15.0, 2.0, 16.0)},
    ]
    found = bench_pairs.summary(pairs)
    assert found["seconds"]["ratio"] == pytest.approx({"median": 1.1, "least": 0.9, "most": 1.5})
    assert found["steps_per_second"]["ratio"]["least"] == 0.5
    assert found["processor_seconds"]["left"] == 8.0
    assert found["processor_seconds"]["right"] == 9.9


def test_a_setting_that_is_none_is_refused_before_a_run(tmp_path):
    with pytest.raises(ConfigError, match="memory_budget: expected bytes"):
        bench_pairs.measure(None, 1, ["memory_budget=none"], tmp_path / "run")
    assert not (tmp_path / "run").exists()
