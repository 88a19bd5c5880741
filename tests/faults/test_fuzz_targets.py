"""A slice of scripts/fuzz.py: each reader takes its seeds, and a few that were damaged."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest

from tests.faults.fuzz_targets import TARGETS


def damaged(data, draw):
    changed = bytearray(data)
    for _ in range(draw.randint(1, 4)):
        place = draw.randrange(len(changed) + 1)
        what = draw.choice(("flip", "cut", "insert", "number"))
        if what == "flip" and place < len(changed):
            changed[place] ^= 1 << draw.randrange(8)
        elif what == "cut":
            del changed[place : place + draw.randint(1, 8)]
        else:
            extra = b"\xff" * 8 if what == "number" else draw.randbytes(draw.randint(1, 6))
            changed[place:place] = extra
    return bytes(changed)


FOUND = [
    ("run manifests", b'{"format": 1, "requested": {"stages": "x"}}'),
    ("run manifests", b'{"format": 1, "requested": {"latency": null}}'),
]
"""Inputs that fuzzing has found: their errors were not documented ones."""


@pytest.mark.parametrize(("name", "data"), FOUND)
def test_what_fuzzing_found(tmp_path, name, data):
    with pytest.raises(TARGETS[name].errors):
        TARGETS[name].read(data, tmp_path)


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_nesting_without_end_is_an_error_like_any(tmp_path, name, opening):
    with suppress(*TARGETS[name].errors):
        TARGETS[name].read(opening * 100_000 + b"\n", tmp_path)


@pytest.mark.parametrize("name", TARGETS)
def test_a_reader_raises_documented_errors_only(tmp_path, name):
    target, draw, refused = TARGETS[name], random.Random(name), 0
    for seed in target.seeds(tmp_path):
        for data in (seed, *(damaged(seed, draw) for _ in range(60))):
            try:
                target.read(data, tmp_path)
            except target.errors:
                refused += 1
    assert refused > 10, "damage is noticed"
