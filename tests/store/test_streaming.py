"""Logs that are read part by part give what they give whole, however they are cut."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest

from naspipe.config.ids import Access, AccessKind, LayerId
from naspipe.store import access_log as streaming
from naspipe.store import differences as agreement
from naspipe.store.access_columns import NUMBERS, joined
from naspipe.store.access_log import AccessLogWriter, RunLog, joint_parts, read_joint_columns
from naspipe.store.access_order import orders_of_layers, orders_of_parts
from naspipe.store.access_segments import Wanted
from naspipe.store.differences import access_differences, log_differences, unequal_layers
from naspipe.store.labels import SpaceLabels
from naspipe.store.metrics import summarize, summarize_parts

RULES = ["lag(2)", "exact", "exact", "frozen"]
SPACE = {
    "name": "toy", "labels": ["stem", "0", "1", "head"], "shared": [True, False, False, True],
    "rules": RULES, "candidates": [1, 2, 2, 1],
}  # fmt: skip
LABELS = SpaceLabels(SPACE)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(streaming, "_AT_ONCE", 7)


def recorded(seed, first, end, versions=lambda y: y - 1):
    """By stage: accesses of some subnets, two stages beside one another, in order of their ends."""
    draw = random.Random(seed)
    clocks, stages = [draw.randrange(50), draw.randrange(50)], ([], [])
    for y in range(first, end):
        for kind in AccessKind:
            for block in range(4):
                if kind is AccessKind.WRITE and block == 3:
                    continue
                stage = block // 2
                start = clocks[stage] + draw.choice([0, 1, 30])
                clocks[stage] = start + draw.choice([1, 5, 9])
                layer = LayerId(0, block, (y * (block + 1)) % 3 % 2 if 0 < block < 3 else 0)
                version = y if kind is AccessKind.WRITE else versions(y)
                stalled = draw.choice([0, 0, 4])
                stages[stage].append(
                    Access(layer, y, kind, version, stage, start, clocks[stage], stalled)
                )
    return stages


def write(path, *lives, every=5):
    """A run directory with the logs of these lives, in segments of a few records."""
    (path / "access").mkdir(parents=True)
    for generation, stages in enumerate(lives):
        for stage, accesses in enumerate(stages):
            suffix = f"-{generation}" if generation else ""
            with AccessLogWriter(path / f"access/stage-{stage}{suffix}.msgpack", generation) as log:
                for number, access in enumerate(accesses):
                    log.append(access)
                    if number % every == 0:
                        log.flush()
    return path


def assert_same(parts, whole):
    found = joined(parts)
    for name in NUMBERS:
        np.testing.assert_array_equal(getattr(found, name), getattr(whole, name))


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("lives", [1, 3])
def test_parts_are_the_whole_in_its_order(tmp_path, seed, lives):
    runs = [
        recorded(seed + n, 6 * n, 14 + 3 * n) for n in range(lives)
    ]  # each begins before an end
    log = RunLog(write(tmp_path / "run", *runs))
    one = LayerId(0, 1, 0)
    for wanted in (Wanted(), Wanted(first=3, end=9), Wanted(layers=frozenset([one])),
                   Wanted(backwards=False, every=2)):  # fmt: skip
        parts = list(log.parts(wanted))
        assert len(parts) > 2 or wanted.layers
        assert_same(parts, log.columns(wanted))
    assert dict(orders_of_parts(log.parts())) == orders_of_layers(log.columns())
    assert summarize_parts(log.parts, 2) == pytest.approx(summarize(log.columns(), 2))
    stages = int(log.columns().stage.max()) + 1  # where it went on with fewer, all count
    assert summarize_parts(log.parts, 1) == summarize_parts(log.parts, stages)
    assert summarize(log.columns(), 1) == summarize(log.columns(), stages) and stages > 1


def test_runs_that_share_a_pipeline(tmp_path):
    paths = [write(tmp_path / f"{seed}", recorded(seed, 0, 9)) for seed in range(2)]
    found = joined(list(joint_parts(paths)))
    whole, _ = read_joint_columns(paths)
    for stream, own in enumerate(whole):
        rows = found.take(found.stream == stream)
        np.testing.assert_array_equal(rows.start_ns, own.start_ns)
    assert len(found) == sum(map(len, whole)) and (np.diff(found.start_ns) >= 0).all()


def test_a_log_without_records(tmp_path):
    (tmp_path / "access").mkdir()
    log = RunLog(tmp_path)
    assert log.is_empty and list(log.parts()) == []
    assert summarize_parts(log.parts, 2) == summarize((), 2)


def test_a_torn_last_segment_is_left_out(tmp_path):
    path = write(tmp_path / "run", recorded(1, 0, 9))
    (last,) = (path / "access").glob("stage-1*")
    for cut in (1, 20, 60):
        last.write_bytes(last.read_bytes()[:-cut])
        log = RunLog(path)
        assert_same(list(log.parts()), log.columns())


@pytest.mark.parametrize("seed", range(6))
def test_equal_layers_are_let_go(tmp_path, seed, monkeypatch):
    """Other times, other stages' pace: the records of each layer are the same."""
    waiting = []
    match = agreement._match

    def measured(one, other, unequal):
        match(one, other, unequal)
        waiting.append(len(one.waiting.keys) + len(other.waiting.keys))

    monkeypatch.setattr(agreement, "_match", measured)
    logs = [RunLog(write(tmp_path / f"{n}", recorded(seed + n, 0, 60))) for n in (0, 100)]
    assert unequal_layers(*logs, LABELS.is_exact) == set()
    assert max(waiting) < 150 and len(waiting) > 20  # of 900 records each
    assert list(log_differences(*logs, LABELS)) == []


@pytest.mark.parametrize("seed", range(20))
def test_what_differs_is_what_the_whole_logs_say(tmp_path, seed):
    """One record is changed, left out, doubled, or changes places with the one before."""
    draw = random.Random(seed)
    lives = [recorded(seed, 0, 20), recorded(seed + 1, 0, 20)]
    accesses = lives[1][draw.randrange(2)]
    at = draw.randrange(1, len(accesses))
    how = draw.choice(["version", "missing", "extra", "number", "cut"])
    if how == "version":
        accesses[at] = accesses[at]._replace(version=accesses[at].version + 7)
    elif how == "number":
        accesses[at] = accesses[at]._replace(sequence_id=accesses[at].sequence_id + 1)
    elif how == "missing":
        del accesses[at]
    elif how == "extra":
        accesses.append(accesses[at]._replace(sequence_id=40))
    else:
        del accesses[at:]
    logs = [RunLog(write(tmp_path / f"{n}", life)) for n, life in enumerate(lives)]
    whole = list(access_differences(*(log.columns() for log in logs), LABELS))
    assert list(log_differences(*logs, LABELS)) == whole
    changed = {LABELS.layer(each.layer) for each in whole}
    assert changed <= unequal_layers(*logs, LABELS.is_exact)


def test_layers_beside_one_without_state_are_compared_as_strictly(tmp_path):
    """Candidate 1 of a block has no state: the order of what candidate 0 did counts as before."""
    block, (candidate, other) = 1, (0, 1)
    labels = SpaceLabels(SPACE, [LABELS.label(LayerId(0, block, other))])
    stages = recorded(1, 0, 20)
    swapped = [list(each) for each in stages]
    of_layer = [
        at for at, each in enumerate(swapped[0])
        if each.layer == LayerId(0, block, candidate) and each.kind is not AccessKind.BACKWARD
    ]  # fmt: skip
    one, two = next(
        (a, b) for a, b in pairwise(of_layer) if swapped[0][a].kind is not swapped[0][b].kind
    )
    times = [each.start_ns for each in swapped[0]], [each.end_ns for each in swapped[0]]
    swapped[0][one], swapped[0][two] = (
        swapped[0][there]._replace(start_ns=times[0][here], end_ns=times[1][here])
        for here, there in ((one, two), (two, one))
    )
    logs = RunLog(write(tmp_path / "one", stages)), RunLog(write(tmp_path / "two", swapped))
    assert unequal_layers(*logs, labels.is_exact) == {LayerId(0, block, candidate)}


def test_logs_with_digests_are_compared_whole(tmp_path):
    stages = recorded(1, 0, 5)
    for accesses in stages:
        accesses[:] = [
            a._replace(digest="ab" if a.kind is AccessKind.WRITE else "") for a in accesses
        ]
    log = RunLog(write(tmp_path / "run", stages))
    assert unequal_layers(log, log, LABELS.is_exact) == set(log.layers)
    assert list(log_differences(log, log, LABELS)) == []
