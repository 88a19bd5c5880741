"""The tables of a search: scores stand in full, choices as far as there is room."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from rich.console import Console

from naspipe.cli.search import print_tables
from naspipe.search.scores import Scores
from naspipe.search.search_directory import Candidate, Search
from naspipe.search.strategies import Cost
from naspipe.store.labels import Decided


@pytest.mark.parametrize("width", [60, 80, 200])
def test_scores_are_shown_whole_on_a_narrow_terminal(width, capsys, monkeypatch):
    monkeypatch.setattr(Console, "is_terminal", True)
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    choices = (1, 0, 2) * 16
    found = Candidate(7, choices, Scores(5.1234, 0.5, 0.7), Cost(12e6, 123_456.0, 3.25))
    search = Search(Path("search-1"), {"definition": {"score": "loss"}}, (found,))
    print_tables(search, [found], {}, Decided())
    title, head, row, *_ = re.sub("\x1b\\[[0-9;]*m", "", capsys.readouterr().out).splitlines()
    assert title.startswith("best by loss") and head.split()[1] == "loss"
    *numbers, shown = row.split()
    assert numbers == ["7", "5.1234", "50.00", "70.00", "12.00", "123,456", "3.25"]
    text = ",".join(map(str, choices))
    assert shown == text if width == 200 else (shown.endswith("…") and text.startswith(shown[:-1]))


def test_labels_stand_beside_the_choices(capsys):
    found = Candidate(7, (1, 0), Scores(5.1234, 0.5, 0.7), Cost(12e6, 123_456.0, 3.25))
    search = Search(Path("search-1"), {"definition": {"score": "loss"}}, (found,))
    decided = Decided([[{"op0": ["0"]}, {"op0": ["1"]}], [{"op1": ["a"]}, {"op1": ["b"]}]])
    print_tables(search, [found], {}, decided)
    _, head, row, *_ = capsys.readouterr().out.splitlines()
    assert head.split()[-2:] == ["choices", "labels"]
    assert row.split()[-3:] == ["1,0", "op0=1", "op1=a"]
