"""The searches of a run: one directory for each, inside the run's."""

from __future__ import annotations

import re
from pathlib import Path

from naspipe.config.errors import ConfigError
from naspipe.search.search_directory import PREFIX, Candidate, Search, SearchDirectory


def default_name(run: Path) -> str:
    """The first number that no search of a run has."""
    taken = {path.name for path in run.glob(f"{PREFIX}*")}
    number = 1
    while f"{PREFIX}{number}" in taken:
        number += 1
    return str(number)


def search_path(run: Path, name: str) -> Path:
    """Where a search of a run is.

    Raises:
        ConfigError: for a name that is none.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name):
        raise ConfigError(f"--name {name!r:.80}: expected letters, digits, points, - and _")
    return run / f"{PREFIX}{name}"


def find_searches(run: Path) -> list[Search]:
    """The searches of a run that came to their end, the newest first.

    Raises:
        LogError: when a file of one is damaged.
    """
    found = [
        SearchDirectory(path).read()
        for path in sorted(run.glob(f"{PREFIX}*"))
        if (path / "manifest.json").is_file()
    ]
    whole = [each for each in found if each.manifest["status"] == "complete"]
    return sorted(whole, key=lambda each: (-each.manifest["finished"], each.path.name))


def find_best(run: Path) -> Candidate:
    """The best subnet of a run's newest search.

    Raises:
        ConfigError: when there is none.
        LogError: when a file of one is damaged.
    """
    search = newest_search(run)
    if ranked := search.ranked():
        return ranked[0]
    raise ConfigError(f"{search.path}: expected a subnet with a {search.score}, found none")


def newest_search(run: Path) -> Search:
    """A run's newest search that came to its end.

    Raises:
        ConfigError: when there is none.
        LogError: when a file of one is damaged.
    """
    for search in find_searches(run)[:1]:
        return search
    raise ConfigError(f"{run}: expected a finished search, found none; start naspipe search {run}")


def find_search(run: Path, name: str = "") -> Search:
    """A run's search of that name; the newest one without.

    Raises:
        ConfigError: when there is none, or it did not come to its end.
        LogError: when a file of it is damaged.
    """
    if not name:
        return newest_search(run)
    search = SearchDirectory(search_path(run, name)).read()
    if (status := search.manifest["status"]) != "complete":
        raise ConfigError(f"{search.path}: expected a finished search, found one that is {status}")
    return search
