"""A slice of scripts/fuzz.py: each reader takes its seeds, and a few that were damaged."""

from __future__ import annotations

import math
import random
from contextlib import suppress

import msgpack
import pytest

from tests.faults.fuzz_target import SEPARATOR, damaged, reshaped
from tests.faults.fuzz_targets import TARGETS
from tests.faults.label_targets import LABEL_TARGETS


def label(sizes, strides, phase, grad=False, name="float32", *, nbytes):
    header = ["label", 7, [name, sizes, strides, phase, grad]]
    return msgpack.packb(header) + SEPARATOR + b"\0" * nbytes


FOUND = [
    ("run manifests", b'{"format": 1, "requested": {"stages": "x"}}'),
    ("run manifests", b'{"format": 1, "requested": {"latency": null}}'),
    ("reports", msgpack.packb(["loss", math.inf, {}])),
    ("messages", msgpack.packb(["contribution", ["norms", 0, math.inf, 1], []])),
    ("teachers' words", label([2], [1], 0.0, nbytes=8)),
    ("teachers' words", label([2.0], [1], 0, nbytes=8)),
    ("teachers' words", label([0, 1 << 62, 1 << 62], [1, 1, 1], 0, nbytes=0)),
    ("teachers' words", label([1 << 40], [0], 0, nbytes=4)),
    ("teachers' words", label([2], [1], 0, True, "int64", nbytes=16)),
    ("teachers' words", label([2], [1], 0, True, nbytes=8)),
    ("students' words", msgpack.packb(["hello", 1, {"seed": 1, 2: 3}])),
    ("label records", b"\x80\xfe\xfe\1"),
    ("keys", b"#" * 40),
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
        for data in (seed, *(draw.choice((damaged, reshaped))(seed, draw) for _ in range(90))):
            try:
                target.read(data, tmp_path)
            except target.errors:
                refused += 1
    assert refused > 10, "damage is noticed"


@pytest.mark.parametrize("name", LABEL_TARGETS)
def test_a_reader_of_labels_takes_what_was_written(tmp_path, name):
    target = LABEL_TARGETS[name]
    target.read(target.seeds(tmp_path)[0], tmp_path)
