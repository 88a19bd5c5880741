"""Subnets of a search that were trained alone since, and how far they confirm its ranking."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from naspipe.core.errors import LogError
from naspipe.core.json_text import parse_json
from naspipe.search.rank_agreement import interval, kendalls_tau
from naspipe.search.scores import Scores, merit
from naspipe.search.search_directory import Candidate, Search
from naspipe.trace.storage.writing import writing

_FILE = "retrained.jsonl"

LEVEL = 0.9
"""Of the interval of tau."""

FEWEST = 4
"""Subnets that an order can be judged by."""

COMPARED = ("loss", "top1", "top5")
"""What is judged of a subnet that was trained alone."""


class Terms(NamedTuple):
    """What subnets have to have in common to be compared."""

    steps: int
    seed: int
    """Of first weights and batches."""
    judged_by: str
    """The held-out data, and how many batches."""


class Retrained(NamedTuple):
    """A subnet of a search, trained alone from its first weights."""

    subnet: int
    """Its number in the search."""
    terms: Terms
    scores: Scores
    """Loss, top-1 and top-5."""
    run: str
    """Its run directory, below the search's."""


class Confidence(NamedTuple):
    """How alike the order by inherited weights is to that alone."""

    subnets: int
    """How many."""
    tau: float
    """Kendall's."""
    low: float
    high: float
    """Ends of its interval, over subnets."""

    @property
    def right_pairs(self) -> float:
        """Of 100 pairs, in how many the better one is named."""
        return 50 * (1 + self.tau)


def read_retrained(search: Path) -> list[Retrained]:
    """Those of a search's directory, the oldest first; of the same subnet and terms, the newest.

    Raises:
        LogError: when the file is damaged.
    """
    path = search / _FILE
    if not path.is_file():
        return []
    lines = path.read_bytes().split(b"\n")[:-1]
    found = [_parsed(line, number, path) for number, line in enumerate(lines, 1)]
    newest: dict[tuple[int, Terms], Retrained] = {}
    for each in reversed(found):
        newest.setdefault((each.subnet, each.terms), each)
    return list(newest.values())[::-1]


def append_retrained(search: Path, each: Retrained) -> None:
    """Add a line to a search's directory.

    Raises:
        StorageError: when it cannot be written.
    """
    scores = {name: getattr(each.scores, name) for name in COMPARED}
    known = {name: value for name, value in scores.items() if math.isfinite(value)}
    fields = {"subnet": each.subnet, **each.terms._asdict(), **known, "run": each.run}
    line = json.dumps(fields, allow_nan=False) + "\n"
    path = search / _FILE
    with writing(path, len(line)), path.open("a", encoding="utf-8") as file:
        file.write(line)


def newest_alike(retrained: Sequence[Retrained]) -> list[Retrained]:
    """Those with the terms of the newest one."""
    return [each for each in retrained if each.terms == retrained[-1].terms] if retrained else []


def compared_by(score: str) -> str:
    """What subnets alone are ranked by, where a search ranked them by a score."""
    return score if score in COMPARED else "loss"


def confidence(search: Search, retrained: Sequence[Retrained]) -> Confidence | None:
    """How far subnets with the same terms confirm a search's order; None for too few of them."""
    candidates = {each.sequence_id: each for each in search.candidates}
    pairs = [
        (
            merit(candidates[each.subnet].scores, search.score),
            merit(each.scores, compared_by(search.score)),
        )
        for each in retrained
    ]
    known = [pair for pair in pairs if not any(map(math.isnan, pair))]
    if len(known) < FEWEST:
        return None
    inherited, alone = zip(*known, strict=True)
    low, high = interval(inherited, alone, LEVEL)
    return Confidence(len(known), kendalls_tau(inherited, alone), low, high)


def chosen(search: Search, best: int, others: int) -> list[Candidate]:
    """The best of a search, and others at even distances below them, to the last one.

    Args:
        search: that ended.
        best: how many of the best.
        others: how many of the rest; an order among equals says little of an order.
    """
    ranked = search.ranked()
    best = min(best, len(ranked))
    rest = len(ranked) - best
    others = min(others, rest)
    places = [best - 1 + round(rest * number / others) for number in range(1, others + 1)]
    return ranked[:best] + [ranked[place] for place in places]


def _parsed(line: bytes, number: int, path: Path) -> Retrained:
    try:
        fields = parse_json(line)
        terms = Terms(_whole(fields["steps"]), _whole(fields["seed"]), str(fields["judged_by"]))
        scores = [float(fields.get(name, "nan")) for name in COMPARED]
        return Retrained(_whole(fields["subnet"]), terms, Scores(*scores), str(fields["run"]))
    except (ValueError, TypeError, KeyError) as error:
        raise LogError(
            f"{path}:{number}: expected a subnet that was trained alone, found {line!r:.120}"
        ) from error


def _whole(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise TypeError
    return value
