"""Ratios of runs in alternation are taken repetition by repetition."""

from __future__ import annotations

import pytest

from naspipe.config.errors import ConfigError
from scripts.bench import settings
from scripts.bench.common import Spread, in_turn


def run(variant, speed, seconds=1.0, cpu=1.0):
    figures = {"steps_per_second": speed, "seconds": seconds, "cpu_seconds": cpu}
    return {"sampler": "uniform", "variant": variant, **figures}


def test_ratios_are_to_the_first_variant_of_the_same_repetition():
    runs = [run("stages=1", 4.0), run("stages=2", 6.0), run("stages=2", 2.2), run("stages=1", 2.0)]
    runs += [run("stages=1", 5.0), run("stages=2", 10.0)]
    rows = settings.summary(runs, ["stages=1", "stages=2"])
    (row,) = [r for r in rows if (r["variant"], r["figure"]) == ("stages=2", "steps_per_second")]
    assert row["ratio"] == pytest.approx(Spread(1.5, 1.1, 2.0)._asdict())
    assert row["value"] == Spread(6.0, 2.2, 10.0)._asdict()
    assert all(r["ratio"]["median"] == 1.0 for r in rows if r["variant"] == "stages=1")


def test_every_other_repetition_has_the_reverse_order():
    assert [in_turn(("a", "b", "c"), number) for number in (0, 1)] == [
        ("a", "b", "c"),
        ("c", "b", "a"),
    ]


def test_an_unknown_setting_is_refused_before_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(settings, "workload_of", lambda *_: None)
    words = ["nlp.c1", "memory_budget=none", "--run-dir", str(tmp_path / "run")]
    with pytest.raises(ConfigError, match="memory_budget: expected bytes"):
        settings.main(words)
    assert not (tmp_path / "run").exists()
