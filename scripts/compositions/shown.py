"""Everything that README and pages show of `naspipe train`, on other stages and groups.

The rules and recipes of named spaces are products that nobody draws, so they are run as they are
shown: each definition with 1 and 2 stages, and on 2 groups. Where its steps have one pass, groups
are tried with ``passes=accumulate:2``.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import search_spaces
from naspipe.config.execution import Execution
from naspipe.config.recipe import parse_passes
from naspipe.config.settings import declared

ROOT = Path(__file__).parent.parent.parent
STEPS = 4
DEFINING = ("--set", "--sampler", "--recipe", "--momentum", "--data", "--teacher", "--policy")
"""Options that say what is trained; those of the execution are left out."""

TEACHERS = {"runs/vit": ["vit"], "runs/large": ["vgg8", "--data", "digits"]}
"""How the pages train the teachers that they name."""


class Shown(NamedTuple):
    """A definition that a page shows."""

    where: str
    """The page, or the name of a space whose default it is."""
    arguments: tuple[str, ...]
    """Of ``naspipe train``, the space first."""


class Row(NamedTuple):
    """What became of one definition."""

    shown: Shown
    executions: str
    is_equal: bool
    detail: str


def definitions() -> list[Shown]:
    """What the pages show, and the default of each named space; each once."""
    found: dict[tuple[str, ...], Shown] = {}
    known = (*search_spaces.names(), *search_spaces.networks())
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        for line in page.read_text().splitlines():
            if match := re.match(r"\s*(?:\$ )?naspipe train (.+?)\s*(?:  #.*)?$", line):
                arguments = _defining(match[1])
                if arguments and arguments[0] in known:
                    found.setdefault(arguments, Shown(page.name, arguments))
    for name in search_spaces.names():
        found.setdefault((name,), Shown(f"the default of {name}", (name,)))
    return list(found.values())


def _defining(text: str) -> tuple[str, ...]:
    """The space, and those options that define what is trained."""
    try:
        words = shlex.split(text.rstrip("\\"))
    except ValueError:
        return ()
    kept = [words[0]]
    of_execution = declared(Execution)
    for option, value in pairwise(words[1:]):
        if option not in DEFINING or (option == "--set" and value.split("=")[0] in of_execution):
            continue
        kept += [option, value]
    return tuple(kept)


def check_shown(shown: Sequence[Shown]) -> Iterator[Row]:
    """Train each definition on several executions, and compare their runs."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        for number, each in enumerate(shown):
            yield from _check(each, place / str(number), place)


def _check(shown: Shown, place: Path, teachers: Path) -> Iterator[Row]:
    arguments = [_teacher(word, teachers) for word in shown.arguments]
    one, error = _train(arguments, place / "one", "--stages", "1")
    if error:
        yield Row(shown, "1 stage", False, error)
        return
    two, error = _train(arguments, place / "two", "--stages", "2")
    yield Row(shown, "1 and 2 stages", *_compared(one, two, error))
    recipe = json.loads((one / "manifest.json").read_text())["definition"]["recipe"]
    base = one
    if parse_passes(recipe.get("passes", "one")).passes == 1:
        arguments += ["--set", "passes=accumulate:2"]
        base, error = _train(arguments, place / "base", "--stages", "1")
        if error:
            yield Row(shown, "passes=accumulate:2", False, error)
            return
    grouped, error = _train(arguments, place / "groups", "--groups", "2")
    yield Row(shown, "1 and 2 groups", *_compared(base, grouped, error))


def _teacher(word: str, place: Path) -> str:
    """The teacher's run that a page names, trained once."""
    if word not in TEACHERS:
        return word
    path = place / word.replace("/", "-")
    if not path.exists():
        _, error = _train(TEACHERS[word], path, "--stages", "1")
        assert not error, error
    return str(path)


def _train(arguments: Sequence[str], path: Path, *execution: str) -> tuple[Path, str]:
    """A run, and the last line of an error."""
    command = ["train", *arguments, "--steps", str(STEPS), "--run-dir", str(path), *execution]
    ended = _naspipe(*command, "--seed", "1", "--quiet")
    lines = (ended.stdout + ended.stderr).strip().splitlines() or ["no output"]
    return path, lines[-1] if ended.returncode else ""


def _compared(one: Path, other: Path, error: str) -> tuple[bool, str]:
    if error:
        return False, error
    ended = _naspipe("compare", str(one), str(other))
    return ended.returncode == 0, (ended.stdout + ended.stderr).strip()


def _naspipe(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "naspipe", *words], cwd=ROOT, capture_output=True, text=True,
        timeout=600, check=False,
    )  # fmt: skip
