"""Every message of the page on porting a loop has a test, which is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_tests_that_it_names_are_there():
    page = (ROOT / "docs/porting.md").read_text()
    rows = [row for row in page.partition("## What is said")[2].splitlines()[4:] if row]
    named = [re.search(r"`(tests/\S+\.py)::(test_\w+)` \|$", row) for row in rows]
    assert len(rows) > 20 and all(named)
    for path, function in (each.groups() for each in named if each):
        assert f"\ndef {function}(" in (ROOT / path).read_text(), f"{path}::{function}"
