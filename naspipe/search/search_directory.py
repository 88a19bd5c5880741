"""A search on disk: a manifest and one line per subnet, inside the directory of its run.

The front consists of the subnets that no other subnet beats in both score and cost.
``SearchDefinition`` is the part of the manifest that defines how subnets are proposed and
evaluated.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from naspipe.config.errors import ConfigError, LogError
from naspipe.config.text import parse_json
from naspipe.search.scores import JUDGED, Scores, check_score, is_score, merit
from naspipe.search.strategies import COSTS, Cost, Limits
from naspipe.store.files import write_json, writing

FORMAT = 1
PREFIX = "search-"


class Point(NamedTuple):
    """A subnet's score (higher is better) and cost (lower is better)."""

    score: float
    cost: float


P = TypeVar("P")


def pareto_front(points: Sequence[tuple[P, Point]]) -> list[tuple[P, Point]]:
    """Return the points not dominated by another, the cheapest first; of equal points, the first.

    A point is dominated by one that is no worse in both score and cost and better in one. Points
    with a NaN score or cost are ignored.
    """
    found: list[tuple[P, Point]] = []
    sound = [pair for pair in points if not any(map(math.isnan, pair[1]))]
    for subject, point in sorted(sound, key=lambda pair: (pair[1].cost, -pair[1].score)):
        if not found or point.score > found[-1][1].score:
            found.append((subject, point))
    return found


class Candidate(NamedTuple):
    """A subnet of a search."""

    sequence_id: int
    choices: tuple[int, ...]
    scores: Scores
    cost: Cost


class Search(NamedTuple):
    """A search that was read from disk."""

    path: Path
    manifest: dict[str, Any]
    candidates: tuple[Candidate, ...]
    """The subnets in the order in which they were proposed."""

    def __repr__(self) -> str:
        score = self.score
        best = next(iter(self.ranked()), None)
        found = f"best {score} {best.scores.of(score):.4g}" if best else f"none has a {score}"
        count = len(self.candidates)
        subnets = f"{count} subnet{'s' * (count != 1)}"
        return f"<Search {self.path}: {self.manifest['status']}, {subnets}, {found}>"

    @property
    def name(self) -> str:
        return self.path.name.removeprefix(PREFIX)

    @property
    def score(self) -> str:
        return str(self.manifest["definition"]["score"])

    @property
    def calibration(self) -> int:
        """Number of batches for computing running statistics; 0 for the run's own."""
        return int(self.manifest["definition"].get("calibration", 0))

    @property
    def ema(self) -> bool:
        return bool(self.manifest["definition"].get("ema", False))

    def note(self, **found: Any) -> None:
        """Add later findings to the manifest."""
        manifest = parse_json((self.path / "manifest.json").read_bytes())
        SearchDirectory(self.path).write_manifest({**manifest, **found})

    def ranked(self) -> list[Candidate]:
        return rank(self.candidates, self.score)

    def front(self, cost: str) -> list[Candidate]:
        return front(self.candidates, self.score, cost)


def rank(candidates: Sequence[Candidate], score: str) -> list[Candidate]:
    """Return each subnet once, the best first; those without a score are left out."""
    unique: dict[tuple[int, ...], Candidate] = {}
    for each in candidates:
        if not math.isnan(merit(each.scores, score)):
            unique.setdefault(each.choices, each)
    return sorted(unique.values(), key=lambda c: (-merit(c.scores, score), c.sequence_id))


def front(candidates: Sequence[Candidate], score: str, cost: str) -> list[Candidate]:
    """Return the subnets that no other beats in both score and ``cost``, one of :data:`COSTS`."""
    points = [
        (each, Point(merit(each.scores, score), getattr(each.cost, cost)))
        for each in rank(candidates, score)
    ]
    return [each for each, _ in pareto_front(points)]


class SearchDirectory:
    """The directory of a search; creating the object accesses no file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def manifest(self) -> Path:
        """File with the definition, the progress and the findings of the search."""
        return self.path / "manifest.json"

    @property
    def candidates(self) -> Path:
        """File with one subnet per line, in the order in which they were proposed."""
        return self.path / "candidates.jsonl"

    def create(self) -> None:
        try:
            self.path.mkdir()
        except FileExistsError:
            raise ConfigError(
                f"{self.path}: there is such a search already; choose another --name"
            ) from None
        except OSError as error:
            raise ConfigError(f"{self.path} cannot be made: {error.strerror}") from error

    def append(self, candidate: Candidate) -> None:
        """Append the next subnet's line."""
        scores = {  # proxies and sums only if they were requested
            name: value
            for name, value in candidate.scores._asdict().items()
            if name in JUDGED or not math.isnan(value)
        }
        fields = {
            "subnet": candidate.sequence_id,
            "choices": list(candidate.choices),
            **{name: _plain(value) for name, value in scores.items()},
            **{name: _plain(value) for name, value in candidate.cost._asdict().items()},
        }
        line = json.dumps(fields, allow_nan=False) + "\n"
        path = self.candidates
        with writing(path, len(line)), path.open("a", encoding="utf-8") as file:
            file.write(line)

    def write_manifest(self, manifest: Mapping[str, Any]) -> None:
        write_json(self.manifest, {"format": FORMAT, **manifest})

    def read(self) -> Search:
        """Read the search.

        Raises:
            ConfigError: if this is not a search.
            LogError: if one of its files is damaged.
        """
        try:
            manifest = parse_json(self.manifest.read_bytes())
            lines = self.candidates.read_bytes().split(b"\n")
        except OSError as error:
            raise ConfigError(f"{self.path} is no search: {error.strerror}") from error
        except ValueError as error:
            raise LogError(f"{self.manifest} is damaged: {error}") from error
        if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
            raise ConfigError(f"{self.manifest}: expected a search of format {FORMAT}")
        definition, finished = manifest.get("definition"), manifest.get("finished", 0)
        if (
            not isinstance(definition, dict)
            or not is_score(definition.get("score"))
            or not isinstance(finished, int | float)
            or not isinstance(manifest.get("status"), str)
        ):
            raise LogError(
                f"{self.manifest} is damaged: expected a definition with a score, and a status"
            )
        found = tuple(
            _candidate(line, number, self.candidates) for number, line in enumerate(lines[:-1])
        )
        return Search(self.path, manifest, found)


def _plain(value: float) -> float | str:
    return value if math.isfinite(value) else repr(value)


def _candidate(line: bytes, number: int, path: Path) -> Candidate:
    try:
        fields = parse_json(line)
        choices = fields["choices"]
        is_sound = all(type(choice) is int and choice >= 0 for choice in choices)
        if fields["subnet"] != number or not is_sound or not all(map(fields.__contains__, JUDGED)):
            raise ValueError
        scores = {name: _number(fields[name]) for name in Scores._fields if name in fields}
        return Candidate(
            number,
            tuple(choices),
            Scores(**scores),
            Cost(*(_number(fields[name]) for name in COSTS)),
        )
    except (ValueError, TypeError, KeyError) as error:
        raise LogError(f"{path}:{number + 1}: expected subnet {number}, found {line!r:.120}") from (
            error
        )


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError
    return float(value)


def default_name(run: Path) -> str:
    """Return the first number that is not the name of a search of the run."""
    taken = {path.name for path in run.glob(f"{PREFIX}*")}
    number = 1
    while f"{PREFIX}{number}" in taken:
        number += 1
    return str(number)


def search_path(run: Path, name: str) -> Path:
    """Return the directory of a search of a run."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name):
        raise ConfigError(f"--name {name!r:.80}: expected letters, digits, points, - and _")
    return run / f"{PREFIX}{name}"


def find_searches(run: Path) -> list[Search]:
    """Return the finished searches of a run, the newest first."""
    found = [
        SearchDirectory(path).read()
        for path in sorted(run.glob(f"{PREFIX}*"))
        if (path / "manifest.json").is_file()
    ]
    whole = [each for each in found if each.manifest["status"] == "complete"]
    return sorted(whole, key=lambda each: (-each.manifest["finished"], each.path.name))


def find_best(run: Path) -> Candidate:
    """Return the best subnet of a run's newest finished search."""
    search = newest_search(run)
    if ranked := search.ranked():
        return ranked[0]
    raise ConfigError(f"{search.path}: expected a subnet with a {search.score}, found none")


def newest_search(run: Path) -> Search:
    """Return a run's newest finished search."""
    for search in find_searches(run)[:1]:
        return search
    raise ConfigError(f"{run}: expected a finished search, found none; start naspipe search {run}")


def find_search(run: Path, name: str = "") -> Search:
    """Return a run's search by name, or the newest one if ``name`` is empty.

    Raises:
        ConfigError: if it does not exist or is not finished.
        LogError: if one of its files is damaged.
    """
    if not name:
        return newest_search(run)
    search = SearchDirectory(search_path(run, name)).read()
    if (status := search.manifest["status"]) != "complete":
        raise ConfigError(f"{search.path}: expected a finished search, found one that is {status}")
    return search


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchDefinition:
    """How subnets are proposed and evaluated, independent of the number of stages used."""

    strategy: str = "evolution"
    options: Mapping[str, float] = field(default_factory=dict)
    budget: int = 100
    seed: int = 0
    delay: int = 8
    """Number of subnets between a subnet and the first one that knows its score; up to one more are
    under way."""
    score: str = "loss"
    """The score that ranks subnets: one of :data:`naspipe.search.scores.SCORES`, or a sum of
    them."""
    calibration: int = 4
    """Number of batches of the training split for computing running statistics; 0 for the run's
    own."""
    validation: int = 8
    ema: bool = False
    """Evaluate with the moving averages of the weights."""
    limits: Limits = field(default_factory=Limits)
    data: Mapping[str, Any] = field(default_factory=dict)
    """The description of the held-out data."""
    loss: str = ""
    """The loss that subnets are evaluated by, if not that of the run."""

    def __post_init__(self) -> None:
        if not isinstance(self.strategy, str):
            raise ConfigError(
                f"strategy: expected a name, of which every block's search makes its own, found an "
                f"object, {type(self.strategy).__name__}"
            )
        least = {"budget": 1, "seed": 0, "delay": 0, "calibration": 0, "validation": 1}
        names = {"calibration": "calibrate", "validation": "validate"}
        for name, smallest in least.items():
            if (found := getattr(self, name)) < smallest:
                option = names.get(name, name)
                raise ConfigError(f"--{option}: expected {smallest} or more, found {found}")
        check_score(self.score)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)
