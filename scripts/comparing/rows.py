"""The short runs by which two versions of the code are compared, and the options of each.

Everything that the command line has to know of ``naspipe train`` and ``naspipe search`` stands in
``FACTORS``: what an older version calls otherwise is said here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

Words = tuple[str, ...]


def _set(*assignments: str) -> Words:
    return tuple(word for each in assignments for word in ("--set", each))


def _rules(rule: str, layers: Mapping[str, Words]) -> dict[str, Words]:
    return {
        space: _set(*(f"rule.{name}={rule}" for name in names)) for space, names in layers.items()
    }


_FRONT = {
    "cv.c2": ("stem",),
    "nlp.c2": ("source_embedding", "target_embedding"),
    "own": ("stem",),
}
"""Shared layers in front, which lag as the spaces have it."""
_SHARED = {
    "cv.c2": ("stem", "head"),
    "nlp.c2": (*_FRONT["nlp.c2"], "final_norm", "head"),
    "own": ("stem", "head"),
}
_HELD_OUT = {
    "cv.c2": (),
    "nlp.c2": (),
    "own": ("--validation", "compared_space:held"),
}
_JUDGED: Words = ("--validate-every", "6", *_set("validate_batches=2", "validate_calibrate=2"))

_SEARCHES: dict[str, Words] = {
    "evolution": (
        "--strategy", "evolution", "--set", "population=6", "--set", "tournament=3",
        "--budget", "20", "--delay", "4", "--stages", "2", "--calibrate", "2", "--validate", "2",
    ),
    "random": (
        "--strategy", "random", "--budget", "8", "--max-params", "5M", "--score", "top1",
        "--validate", "2",
    ),
    "greedy": (
        "--strategy", "greedy", "--budget", "20", "--stages", "2", "--calibrate", "2",
        "--validate", "2", "--score", "top5", "--memory-budget", "2x",
    ),
}  # fmt: skip

FACTORS: dict[str, dict[str, Words | dict[str, Words]]] = {
    "action": {
        "train": (),
        "validate": {space: (*_JUDGED, *held) for space, held in _HELD_OUT.items()},
        "resume-1": (),
        "resume-2": (),
        "resume-4": (),
        "search-evolution": (),
        "search-random": (),
        "search-greedy": (),
    },
    "space": {
        "cv.c2": ("cv.c2", *_set("data.batch_size=4")),
        "nlp.c2": ("nlp.c2", *_set("data.max_tokens=240")),
        "own": ("compared_space:own", "--data", "compared_space:batches"),
    },
    "policy": {
        "csp": (),
        "bsp": ("--policy", "bsp", "--bulk", "3"),
        "asp": ("--policy", "asp"),
        "sequential": ("--policy", "sequential"),
    },
    "stages": {
        "1-stage": ("--stages", "1"),
        "2-stages": ("--stages", "2"),
        "4-stages": ("--stages", "4"),
    },
    "passes": {
        "one": (),
        "accumulate:3": _set("passes=accumulate:3"),
        "sandwich:1": _set("passes=sandwich:1"),
    },
    "clip": {
        "unclipped": (),
        "clip-layer": _set("clip_layer_norm=0.5"),
        "clip-global": _set("clip_global_norm=0.5"),
    },
    "ema": {"no-ema": (), "ema": _set("ema=0.9")},
    "rules": {
        "usual-rules": (),
        "lag": _rules("lag(2)", _FRONT),
        "exact": _rules("exact", _FRONT),
        "frozen": _rules("frozen", _SHARED),
    },
    "memory": {
        "unlimited": (),
        "2x": ("--memory-budget", "2x", *_set("bandwidth=1e9")),
        "least": ("--memory-budget", "0.001x", *_set("bandwidth=1e9")),
    },
    "order": {
        "auto": (),
        "paper": ("--order", "paper"),
        "critical-path": ("--order", "critical-path"),
    },
    "sampler": {
        "uniform": (),
        "spaced": {
            "cv.c2": ("--sampler", "spaced:4"),
            "nlp.c2": ("--sampler", "spaced:4"),
            "own": ("--sampler", "fair"),  # two candidates leave no room
        },
        "growing": ("--sampler", "compared_strategy:climb", *_set("feedback_delay=4")),
        "evolution": ("--sampler", "evolution", *_set("feedback_delay=4")),
    },
    "streams": {"1-stream": (), "2-streams": ("--streams", "2")},
    "optimizer": {
        "SGD": _set("optimizer=SGD", "lr=0.01", "optimizer.momentum=0.9"),
        "Adam": _set("optimizer=Adam", "lr=0.001"),
    },
    "recompute": {"kept": (), "recompute": ("--recompute",)},
    "partition": {"balanced": (), "static": ("--partition", "static")},
    "precision": {"float32": (), "bf16": _set("precision=bf16")},
    "targets": {
        "plain": (),
        "smooth": _set("label_smoothing=0.1", "schedule=cosine", "warmup_steps=3"),
    },
    "wire": {"ipc": (), "tcp": _set("transport=tcp")},
    "window": {"window-16": _set("window=16"), "window-5": _set("window=5")},
    "digests": {"no-digests": (), "digests": ("--digests",)},
}
"""Every factor's values, the usual one first, with the options that say them."""

APART: tuple[tuple[Words, Words], ...] = (
    # A baseline knows single passes and known streams, and keeps its own partition and order.
    (("bsp", "asp"), ("accumulate:3", "sandwich:1", "clip-global", "growing")),
    (("bsp", "asp"), ("critical-path", "balanced", "window-5")),
    (("asp",), ("2x", "least")),
    # A strategy that learns proposes single passes, and nobody knows what it will propose.
    (("growing",), ("accumulate:3", "sandwich:1", "critical-path")),
    # The sandwich takes the largest candidate of each block; a decision of NNI's may reach several.
    (("own",), ("sandwich:1",)),
    # One stage sends nothing and has nothing to rank.
    (("1-stage",), ("tcp", "critical-path")),
)
"""Values that never meet in a row; any other two of different factors do, in one row at least."""

ALONE = ("sequential", "evolution")
"""Values, beside the actions, that are tried once and not with every other one."""

_ROWS = (
    "cv.c2 accumulate:3 ema exact least paper spaced Adam smooth digests",
    "cv.c2 sandwich:1 clip-global ema lag 2x recompute smooth window-5 digests",
    "cv.c2 4-stages ema 2x critical-path 2-streams static smooth tcp",
    "cv.c2 4-stages ema lag paper growing recompute static bf16 smooth tcp window-5",
    "cv.c2 4-stages clip-layer frozen least paper growing recompute static bf16 digests",
    "cv.c2 4-stages accumulate:3 clip-global spaced Adam bf16 smooth tcp digests",
    "cv.c2 4-stages sandwich:1 exact 2x critical-path spaced 2-streams Adam tcp window-5 digests",
    "cv.c2 4-stages sandwich:1 ema frozen least paper 2-streams smooth tcp window-5 digests",
    "cv.c2 bsp 2-stages ema frozen least spaced static smooth tcp",
    "cv.c2 asp 2-stages frozen spaced 2-streams Adam recompute static smooth digests",
    "cv.c2 asp clip-layer ema exact recompute static bf16 digests",
    "nlp.c2 2-stages clip-global ema exact 2x paper growing recompute bf16 smooth tcp window-5",
    "nlp.c2 2-stages accumulate:3 clip-global lag least critical-path static",
    "nlp.c2 2-stages sandwich:1 clip-layer critical-path spaced Adam recompute static bf16 smooth "
    "digests",
    "nlp.c2 bsp clip-layer ema lag 2x paper spaced 2-streams Adam static digests",
    "nlp.c2 asp spaced recompute static digests",
    "nlp.c2 asp 4-stages frozen paper spaced 2-streams Adam static smooth tcp",
    "own 2-stages frozen least critical-path 2-streams recompute static window-5",
    "own clip-global ema growing 2-streams Adam window-5",
    "own accumulate:3 clip-global frozen 2x paper spaced Adam bf16 window-5",
    "own 4-stages accumulate:3 clip-layer ema lag least critical-path 2-streams Adam recompute "
    "bf16 smooth tcp window-5",
    "own bsp least paper static bf16 smooth digests",
    "own bsp 4-stages clip-layer exact paper spaced Adam recompute static tcp",
    "own asp lag paper 2-streams Adam static bf16",
    "cv.c2 sequential 2-stages evolution digests",
    "validate cv.c2 2-stages ema 2x",
    "validate nlp.c2 4-stages Adam window-5",
    "validate own accumulate:3",
    "resume-1 cv.c2 4-stages 2x ema Adam window-5",
    "resume-4 nlp.c2 accumulate:3 clip-global window-5",
    "resume-4 own 2-stages growing window-5",
    "resume-2 cv.c2 sandwich:1 2-streams window-5",
    "search-evolution cv.c2 ema",
    "search-random nlp.c2 Adam",
    "search-greedy own",
)
"""Of each row the values that are not the usual ones, and the space."""

QUICK = ("02", "09", "10", "12", "19", "21", "26", "29", "32", "33")
"""Names of rows that have every value in one of them at least, but for actions and the lone."""


class Row(NamedTuple):
    """One comparison."""

    name: str
    values: dict[str, str]
    """Of every factor."""

    @property
    def text(self) -> str:
        """Its space and what is unusual about it."""
        usual = {next(iter(values)) for values in FACTORS.values()} - set(FACTORS["space"])
        return " ".join(word for word in self.values.values() if word not in usual)

    @property
    def steps(self) -> int:
        """Few, and as many passes; more where a run is to be stopped in the middle."""
        steps = 48 if self.values["action"].startswith("resume") else 16
        return steps if self.values["passes"] == "one" else steps // 3 + 1

    @property
    def train(self) -> Words:
        """The words of ``naspipe train`` for its run."""
        words = [*FACTORS["space"][self.values["space"]], "--steps", str(self.steps), "--seed", "1"]
        for factor, value in self.values.items():
            if factor != "space":
                options = FACTORS[factor][value]
                words += options[self.values["space"]] if isinstance(options, dict) else options
        return (*words, "--quiet")

    @property
    def search(self) -> Words:
        """The words of ``naspipe search`` behind the run."""
        strategy = self.values["action"].removeprefix("search-")
        ema = ("--ema",) if self.values["ema"] == "ema" else ()
        return (*_SEARCHES[strategy], *_HELD_OUT[self.values["space"]], *ema, "--quiet")


def parse_row(name: str, text: str) -> Row:
    """A row from its words; what they leave out is the usual value.

    Raises:
        ValueError: for a word that is no value, or two of one factor.
    """
    factor_of = {word: factor for factor, values in FACTORS.items() for word in values}
    found: dict[str, str] = {}
    for word in text.split():
        if word not in factor_of or factor_of[word] in found:
            raise ValueError(f"row {name}: expected one value of each factor, found {word!r}")
        found[factor_of[word]] = word
    usual = {factor: next(iter(values)) for factor, values in FACTORS.items()}
    return Row(name, usual | found)


ROWS = tuple(parse_row(f"{number:02}", text) for number, text in enumerate(_ROWS, 1))
