"""Every message of the page on porting a loop has a test, which is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_tests_that_it_names_are_there():
    said = (ROOT / "docs/porting.md").read_text().partition("## Messages")[2]
    numbers = re.findall(r"^\| (\d+) \| (?!`tests/)", said, re.MULTILINE)
    named = re.findall(r"^\| (\d+) \| `(tests/\S+\.py)` \| `(test_\w+)` \|$", said, re.MULTILINE)
    assert len(numbers) > 20 and numbers == [number for number, *_ in named]
    for _, path, function in named:
        assert f"\ndef {function}(" in (ROOT / path).read_text(), f"{path}::{function}"
