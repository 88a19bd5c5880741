"""Every command that the README and the pages show is one that naspipe takes."""

from __future__ import annotations

import re
import shlex

import pytest

from naspipe.cli.main import SUBCOMMANDS, _load, build_parser
from naspipe.core.errors import ConfigError
from tests.docs.test_pages import PAGES, ROOT

COMMAND = re.compile(r"^    +(?:\S+ -m )?naspipe ((?:[^\n]*\\\n)*[^\n]*)$", re.MULTILINE)


def commands(text: str) -> list[list[str]]:
    """Of a page, in their order; what stands behind a # is left out."""
    found = [re.sub(r"\\\n\s*", " ", each) for each in COMMAND.findall(text)]
    return [shlex.split(each, comments=True) for each in found if re.match(r"[a-z]+( |$)", each)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_are_taken(page):
    for words in commands(page.read_text("utf-8")):
        if words[0] in SUBCOMMANDS:
            try:
                build_parser(words[0], _load(words[0])).parse_args(words)
            except ConfigError as error:
                pytest.fail(f"naspipe {' '.join(words)}: {error}")


def test_what_is_shown_is_found_and_what_is_wrong_is_seen():
    found = commands((ROOT / "docs/first-run.md").read_text("utf-8"))
    assert len(found) > 10 and ["data", "list"] in found
    (words,) = commands("    naspipe train nlp.c1 \\\n        --stagez 2   # wrong\n")
    assert words == ["train", "nlp.c1", "--stagez", "2"]
    with pytest.raises(ConfigError):
        build_parser("train", _load("train")).parse_args(words)
    assert {words[0] for page in PAGES for words in commands(page.read_text("utf-8"))} >= {
        "train",
        "compare",
        "log",
        "report",
        "plan",
        "search",
        "export",
        "distill",
        "combine",
    }
