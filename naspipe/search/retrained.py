"""Subnets of a search that were later trained alone, and how well they confirm its ranking."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from naspipe.config.errors import LogError
from naspipe.config.text import parse_json
from naspipe.search.scores import Scores, interval, kendalls_tau, merit
from naspipe.search.search_directory import Candidate, Search
from naspipe.store.files import writing

_FILE = "retrained.jsonl"

LEVEL = 0.9

FEWEST = 4
"""Minimum number of subnets to assess a ranking."""

COMPARED = ("loss", "top1", "top5")
"""The scores of a subnet that was trained alone."""


class Terms(NamedTuple):
    """Conditions that must be equal for subnets to be compared."""

    steps: int
    seed: int
    judged_by: str
    """The held-out data, and the number of batches."""


class Retrained(NamedTuple):
    """A subnet of a search, trained alone from its initial weights."""

    subnet: int
    """Its number in the search."""
    terms: Terms
    scores: Scores
    """Loss, top-1 and top-5."""
    run: str
    """Its run directory, below the search's."""


class Confidence(NamedTuple):
    """How similar the ranking with inherited weights is to that of subnets trained alone."""

    subnets: int
    tau: float
    low: float
    high: float
    """Upper end of the interval over subnets; ``low`` is the lower end."""
    right_pairs: float
    """Percentage of pairs whose better subnet is predicted correctly; a tie counts half."""


def read_retrained(search: Search) -> list[Retrained]:
    """Return a search's retrained subnets, oldest first; only the newest per subnet and terms."""
    path = search.path / _FILE
    if not path.is_file():
        return []
    lines = path.read_bytes().split(b"\n")[:-1]
    count = len(search.candidates)
    found = [_parsed(line, number, path, count) for number, line in enumerate(lines, 1)]
    newest: dict[tuple[int, Terms], Retrained] = {}
    for each in reversed(found):
        newest.setdefault((each.subnet, each.terms), each)
    return list(newest.values())[::-1]


def append_retrained(search: Path, each: Retrained) -> None:
    """Append a line to the file in a search's directory."""
    scores = {name: getattr(each.scores, name) for name in COMPARED}
    known = {
        name: value if math.isfinite(value) else repr(value)
        for name, value in scores.items()
        if not math.isnan(value)
    }
    fields = {"subnet": each.subnet, **each.terms._asdict(), **known, "run": each.run}
    line = json.dumps(fields, allow_nan=False).encode() + b"\n"
    path = search / _FILE
    with writing(path, len(line)), path.open("ab") as file:
        file.truncate(path.read_bytes().rfind(b"\n") + 1)  # drops a truncated line
        file.write(line)


def newest_alike(retrained: Sequence[Retrained]) -> list[Retrained]:
    return [each for each in retrained if each.terms == retrained[-1].terms] if retrained else []


def compared_by(score: str) -> str:
    """Return the score that ranks subnets trained alone, if a search ranked them by ``score``."""
    return score if score in COMPARED else "loss"


def confidence(search: Search, retrained: Sequence[Retrained]) -> Confidence | None:
    """Return how well subnets with equal terms confirm a search's ranking; None if too few."""
    pairs = [
        (
            merit(search.candidates[each.subnet].scores, search.score),
            merit(each.scores, compared_by(search.score)),
        )
        for each in retrained
    ]
    known = [pair for pair in pairs if not any(map(math.isnan, pair))]
    if len(known) < FEWEST:
        return None
    inherited, alone = zip(*known, strict=True)
    low, high = interval(inherited, alone, LEVEL)
    signs = [(a > c) - (a < c) for a, c in combinations(inherited, 2)]
    theirs = [(a > c) - (a < c) for a, c in combinations(alone, 2)]
    right = fmean((1 + one * other) / 2 for one, other in zip(signs, theirs, strict=True))
    return Confidence(len(known), kendalls_tau(inherited, alone), low, high, 100 * right)


def chosen(search: Search, best: int, others: int) -> list[Candidate]:
    """Return the best subnets of a search, and others evenly spaced down to the last one.

    Args:
        search: a finished search.
        best: number of best subnets.
        others: number of other subnets; a ranking among nearly equal subnets is no evidence for a
            ranking.
    """
    ranked = search.ranked()
    best = min(best, len(ranked))
    rest = len(ranked) - best
    others = min(others, rest)
    places = [best - 1 + round(rest * number / others) for number in range(1, others + 1)]
    return ranked[:best] + [ranked[place] for place in places]


def _parsed(line: bytes, number: int, path: Path, count: int) -> Retrained:
    try:
        fields = parse_json(line)
        terms = Terms(_whole(fields["steps"]), _whole(fields["seed"]), str(fields["judged_by"]))
        scores = [float(fields.get(name, "nan")) for name in COMPARED]
        if _whole(fields["subnet"]) >= count:
            raise ValueError
        return Retrained(fields["subnet"], terms, Scores(*scores), str(fields["run"]))
    except (ValueError, TypeError, KeyError) as error:
        raise LogError(
            f"{path}:{number}: expected a subnet that was trained alone, found {line!r:.120}"
        ) from error


def _whole(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise TypeError
    return value
