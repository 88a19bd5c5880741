"""docs/faults.md names tests that are there: files, and behind them parts of a test's name."""

from __future__ import annotations

import re

import pytest

from tests.test_architecture import ROOT

PAGE = ROOT / "docs" / "faults.md"
A_TEST = re.compile(r"`((?:\w+/)*test_\w+\.py)`(?:: `(\w+)`)?")


def rows(text: str) -> list[str]:
    """The last cell of each row."""
    found = re.findall(r"^\| (?!-|\*\*|fault )[^\n]*\| ([^|\n]+) \|$", text, re.MULTILINE)
    return [str(each) for each in found]


def lost(cell: str) -> list[str]:
    """What a cell names that is not there."""
    found = []
    for name, part in A_TEST.findall(cell):
        path = next((each for each in (ROOT / "tests" / name, ROOT / name) if each.exists()), None)
        pattern = rf"^ *def \w*{part}\w*\(" if part else r"^ *def test_"
        if path is None or not re.search(pattern, path.read_text("utf-8"), re.MULTILINE):
            found.append(f"{name}: {part}")
    return found


def test_every_row_names_something() -> None:
    found = rows(PAGE.read_text("utf-8"))
    assert len(found) > 50
    assert [each for each in found if "`" not in each and "storm" not in each] == []


@pytest.mark.parametrize("cell", rows(PAGE.read_text("utf-8")))
def test_what_a_row_names_is_there(cell) -> None:
    assert lost(cell) == []


def test_what_is_not_there_is_seen() -> None:
    assert lost("`docs/test_faults_page.py`: `not_there_is_seen`") == []
    assert lost("`docs/test_lost.py`, `docs/test_faults_page.py`: `is_no_part`") == [
        "docs/test_lost.py: ", "docs/test_faults_page.py: is_no_part",
    ]  # fmt: skip
