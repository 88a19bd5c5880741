"""Subnets as Once-for-all and whittle draw them, by the code of the page."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest

from tests.docs.test_code import blocks
from tests.docs.test_pages import PAGES

KERNELS, EXPANSIONS, DEPTHS = [3, 5, 7], [3, 4, 6], [2, 3, 4]
SETTINGS = {
    **{f"kernel{n}": KERNELS for n in range(4)}, **{f"expand{n}": EXPANSIONS for n in range(4)},
    **{f"depth{n}": DEPTHS for n in range(2)},
}  # fmt: skip


@pytest.fixture
def page(tmp_path, monkeypatch):
    """What the page defines."""
    monkeypatch.chdir(tmp_path)
    (text,) = [page for page in PAGES if page.name == "elastic-layers.md"]
    names = {}
    for code in blocks(text):
        exec(compile(code, text.name, "exec"), names)
    return names


def test_once_for_all(page):
    found = list(page["like_ofa"](SETTINGS, 3, 4))
    for place, sample in enumerate(found):
        step, number = divmod(place, 4)
        random.seed(int(f"{step:d}{number:03d}{0:03d}"))  # as its training does
        expected = [random.choice(KERNELS) for _ in range(4)]
        expected += [random.choice(EXPANSIONS) for _ in range(4)]
        expected += [random.choice(DEPTHS) for _ in range(2)]
        assert list(sample.values()) == expected


def test_whittle(page):
    draw = np.random.RandomState(7)  # its settings are ranges, and lists
    for sample in page["like_whittle"](SETTINGS, 20, 7):
        for name, value in sample.items():
            own = SETTINGS[name]
            is_range = own[-1] - own[0] == len(own) - 1
            expected = draw.randint(own[0], own[-1] + 1) if is_range else own[draw.choice(3)]
            assert value == expected


def test_the_file_is_a_stream(page):
    lines = Path("subnets.jsonl").read_text().splitlines()
    assert len(lines) == 400
    assert {len(json.loads(line)) for line in lines} == {len(page["space"].candidate_counts)}
