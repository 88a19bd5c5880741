"""scripts/check_races.py: what it writes, and when it fails."""

from __future__ import annotations

import json
from contextlib import nullcontext

import pytest

from scripts import check_races
from tests.happens_before.mutants import MUTANTS

NAME = "outputs are sent without a wait"


@pytest.fixture(autouse=True)
def few_cases(monkeypatch):
    monkeypatch.setattr(check_races, "MUTANT_CASES", 20)


@pytest.mark.parametrize(("mutant", "status"), [(MUTANTS[NAME], 0), (nullcontext, 1)])
def test_a_mutant_that_is_not_found_is_a_failure(tmp_path, mutant, status):
    path = tmp_path / "races.json"
    assert check_races.main(["--cases", "8", "--output", str(path)], {NAME: mutant}) == status
    written = json.loads(path.read_text())
    assert written["cases"] == 8 and written["finding"] == ""
    found = written["mutants"][NAME]
    assert (found["by_clocks_in_case"] is None) == bool(status)
    assert "0x" not in found["finding"]


def test_a_race_is_a_failure(tmp_path):
    path = tmp_path / "races.json"
    with MUTANTS[NAME]():
        assert check_races.main(["--cases", "20", "--output", str(path)], {}) == 1
    assert "not ordered" in json.loads(path.read_text())["finding"]
