"""Seeded kills of stages whose activations go through shared memory: nothing of it may be left."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

from naspipe.wire.shared_rings import Ring
from tests.faults import storm
from tests.faults.ring_points import RING_POINTS, after

ROWS = 1024
"""Of a batch: an activation has 98 KB then, and the least that takes a ring is 32 KiB."""

POINTS = (*RING_POINTS, "forward", "backward", "send", "recovery")

SHARED = Path("/dev/shm")


def draw_case(seed):
    """Kills of stages only; each but the last is told of, or sends, activations."""
    draw = random.Random(seed)
    point, stages = POINTS[seed % len(POINTS)], draw.choice((2, 3, 4))
    call = 1 if point == "recovery" else draw.randint(1, 20)
    victim, mode = f"stage {draw.randrange(stages)}", draw.choice(list(storm.MODES))
    return storm.Case(point, victim, stages, mode, call, draw.random() < 0.5, rows=ROWS)


def reference(scratch):
    """The undisturbed run, on one stage: without rings."""
    return storm.reference(scratch, case=draw_case(0))


def run_case(case, scratch, steps=24):
    """As :func:`tests.faults.storm.run_case`; also that rings were used, and leave nothing."""
    used, earlier = scratch / "used", names()
    put = Ring.put
    after(Ring, "put", partial(used.touch), lambda position: position is not None)
    try:
        done = storm.run_case(case, scratch, steps)
    finally:
        Ring.put = put
    assert used.exists(), "no activation went through a ring"
    left = sorted(names() - earlier)
    assert left == [], f"left in {SHARED}: {left}"
    return {**done, "left_in_shared_memory": left}


def names():
    """Return the names of the segments in shared memory; directories belong to other programs."""
    return {each.name for each in SHARED.iterdir() if not each.is_dir()}
