"""Speeds of both versions in alternation: training, the controller, the simulator."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from naspipe.config.ids import Access
from naspipe.store.access_log import read_run_accesses
from naspipe.store.metrics import warm_up_end_ns
from scripts.bench.common import Spread
from scripts.comparing.versions import BOTH, CompareError, Version, Workplace

_STEPS = {"nlp.c1": 60, "cv.c3": 240}


class SpeedRow(NamedTuple):
    """One figure."""

    name: str
    unit: str
    words: tuple[str, ...]
    """Of naspipe train, or a script of ``both`` and its arguments."""


def _training(space: str, stages: int, sampler: str) -> SpeedRow:
    words = (
        "train", space, "--scale", "tiny", "--stages", str(stages), "--sampler", sampler,
        "--steps", str(_STEPS[space]), "--seed", "1", "--quiet",
    )  # fmt: skip
    return SpeedRow(f"{space} {stages}-stage{'s' * (stages > 1)} {sampler}", "steps/s", words)


SPEED_ROWS = (
    *(
        _training(space, stages, sampler)
        for space in _STEPS
        for stages in (1, 2)
        for sampler in ("spaced:8", "uniform")
    ),
    SpeedRow("controller unlimited", "events/s", ("controller_speed.py",)),
    SpeedRow("controller 3x", "events/s", ("controller_speed.py", "3x")),
    SpeedRow("simulator 2-stages", "subnets/s", ("simulator_speed.py", "2", "1000", "uniform")),
    SpeedRow("simulator 8-stages", "subnets/s", ("simulator_speed.py", "8", "1000", "uniform")),
)


def steps_per_second(accesses: Sequence[Access]) -> float:
    """Subnets that ended after the warm-up over the time from there to the last record.

    Raises:
        CompareError: where nothing comes after the warm-up.
    """
    start = warm_up_end_ns(accesses)
    ends: dict[tuple[int, int], int] = {}
    for access in accesses:
        step = (access.layer.stream, access.sequence_id)
        ends[step] = max(ends.get(step, 0), access.end_ns)
    if start is None or max(ends.values()) <= start:
        raise CompareError("expected steps behind the warm-up, found none: train more of them")
    return sum(end > start for end in ends.values()) / ((max(ends.values()) - start) / 1e9)


def measure(version: Version, row: SpeedRow, place: Workplace) -> float:
    """One figure, in a process of its own.

    Raises:
        CompareError: when the version cannot do it.
    """
    if row.words[0] != "train":
        done = place.python(version, str(BOTH / row.words[0]), *row.words[1:])
        _check(version, row, done.status, done.said)
        return float(json.loads(done.out)["per_second"])
    run = place.folder / "run"
    shutil.rmtree(run, ignore_errors=True)
    done = place.naspipe(version, *row.words, "--run-dir", str(run))
    _check(version, row, done.status, done.said)
    return steps_per_second(read_run_accesses(run))


def _check(version: Version, row: SpeedRow, status: int, said: str) -> None:
    if status:
        raise CompareError(f"{row.name}: {version.name}: status {status}: {said}")


def in_turn(pair: int, before: Version, present: Version) -> tuple[Version, Version]:
    """Who is measured first: one version and the other in alternation, so that no drift of the
    machine favours either."""
    return (present, before) if pair % 2 else (before, present)


def summary(row: SpeedRow, speeds: dict[str, list[float]]) -> dict[str, Any]:
    """Medians and spread of both versions, and of present over before pair by pair."""
    pairs = list(zip(speeds["before"], speeds["present"], strict=True))
    ratios = [present / before for before, present in pairs]
    return {
        "row": row.name, "unit": row.unit, "pairs": len(pairs),
        **{name: Spread.of(values)._asdict() for name, values in speeds.items()},
        "ratio": Spread.of(ratios)._asdict(), "speeds": speeds,
    }  # fmt: skip


def texts(found: dict[str, Any]) -> tuple[str, ...]:
    """A row of the table."""
    spreads = (str(Spread(**found[name])) for name in ("before", "present", "ratio"))
    return (found["row"], found["unit"], *spreads)


def output_of(rows: Sequence[SpeedRow], folder: Path) -> Path | None:
    """Where the figures are kept when nothing is said: nowhere, unless all were taken."""
    return folder / "speed.json" if len(rows) == len(SPEED_ROWS) else None
