"""One row by both versions: what is run, and the verdict on what it leaves."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from enum import Enum
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from naspipe.config.errors import NaspipeError
from naspipe.store.compare import compare_runs
from scripts.comparing.rows import Row
from scripts.comparing.versions import (
    Ended,
    Version,
    Workplace,
    number_of_lines,
    run_directories,
)

_REFUSED = 2
"""Exit status of a command line that naspipe does not know."""
_STOPPED = 128 + 15
_STOP_STEPS = 4
"""Losses that are there when a run is told to end."""
FIRST_PORT, PORTS = 20_000, 900
"""Below those that the kernel gives to others; a row takes ten."""


class Kind(Enum):
    """What a row shows."""

    IDENTICAL = "IDENTICAL"
    DIFFERS = "DIFFERS"
    FAILED = "FAILED"
    CANNOT = "BEFORE CANNOT"


class Verdict(NamedTuple):
    """What a row shows, and where or why."""

    kind: Kind
    detail: str = ""

    @property
    def is_wrong(self) -> bool:
        """Whether a change of the code is to blame, or nothing is proved."""
        return self.kind in (Kind.DIFFERS, Kind.FAILED)

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.detail}" if self.detail else self.kind.value


def judge(before: Ended, present: Ended, difference: Callable[[], str]) -> Verdict:
    """The verdict on two commands; ``difference`` of what they left is asked for when both ended.

    What is refused by the version before is a new capability; what only the present one refuses
    is a loss.
    """
    if before.status == present.status == _REFUSED:
        return Verdict(Kind.FAILED, f"neither version takes it: {present.said}")
    if before.status:
        return failed_before(before)
    if present.status == _REFUSED:
        return Verdict(Kind.DIFFERS, f"the present code refuses it: {present.said}")
    if present.status:
        return Verdict(Kind.FAILED, f"present: status {present.status}: {present.said}")
    found = difference()
    return Verdict(Kind.DIFFERS, found) if found else Verdict(Kind.IDENTICAL)


def failed_before(before: Ended) -> Verdict:
    """The verdict where the version before did not come to what is to be compared."""
    if before.status == _REFUSED:
        return Verdict(Kind.CANNOT, before.said)
    return Verdict(Kind.FAILED, f"before: status {before.status}: {before.said}")


def run_difference(one: Path, other: Path) -> str:
    """What differs between two runs, of one stream or several; nothing where no bit does."""
    sides = run_directories(one), run_directories(other)
    if len(sides[0]) != len(sides[1]):
        return f"{len(sides[0])} streams against {len(sides[1])}"
    for pair in zip(*sides, strict=True):
        try:
            (comparison,) = compare_runs(pair)
        except NaspipeError as error:
            return f"cannot be compared: {error}"
        if not comparison.is_identical:
            return str(comparison).replace("\n", "; ")
        if comparison.warnings:
            return f"identical as far as it could be compared: {'; '.join(comparison.warnings)}"
    return ""


def file_difference(one: Path, other: Path) -> str:
    """The first line in which two files differ; nothing where no byte does."""
    try:
        left, right = (path.read_bytes().split(b"\n") for path in (one, other))
    except OSError as error:
        return f"{one.name}: expected one of both versions, found {error}"
    for number, (mine, theirs) in enumerate(zip_longest(left, right, fillvalue=b"absent"), 1):
        if mine != theirs:
            texts = (line.decode("utf-8", "replace") for line in (mine, theirs))
            return f"{one.name}:{number}: " + " against ".join(f"{text:.200}" for text in texts)
    return ""


class Bench:
    """Carries out rows, each in a directory of its own.

    Args:
        before, present: the versions.
        place: where their commands run.
        port: of the first row's tcp transport.
        keep: where the directories of rows that differ are left; None to leave nothing.
    """

    def __init__(
        self, before: Version, present: Version, place: Workplace, port: int, keep: Path | None
    ) -> None:
        self._before, self._present, self._place = before, present, place
        self._port, self._keep = port, keep

    def compare(self, row: Row) -> dict[str, Any]:
        """Run a row by both versions; its verdict and seconds."""
        folder = self._place.folder / f"row-{row.name}"
        folder.mkdir()
        action = row.values["action"].partition("-")[0]
        carry_out = {
            "train": self._train, "validate": self._train, "resume": self._resume,
            "search": self._search,
        }[action]  # fmt: skip
        verdict, seconds = carry_out(row, folder)
        if verdict.is_wrong and self._keep is not None:
            shutil.copytree(folder, self._keep / row.name, dirs_exist_ok=True)
        shutil.rmtree(folder)
        return {
            "row": row.name, "values": row.text, "verdict": verdict.kind.value,
            "detail": verdict.detail, "seconds": seconds,
        }  # fmt: skip

    def _train(self, row: Row, folder: Path) -> tuple[Verdict, dict[str, float]]:
        def difference() -> str:
            found = run_difference(folder / "before", folder / "present")
            if not found and row.values["action"] == "validate":
                found = file_difference(*(folder / name / "validation.jsonl" for name in names))
            return found

        names = ("before", "present")
        before = self._run(self._before, row, folder / "before")
        present = self._run(self._present, row, folder / "present")
        seconds = {"before": before.seconds, "present": present.seconds}
        verdict = judge(before, present, difference)
        if verdict.kind is Kind.DIFFERS and present.status == 0:
            again = self._run(self._before, row, folder / "again")
            agrees = again.status == 0 and not run_difference(folder / "before", folder / "again")
            itself = "has the bits of the first" if agrees else "differs from the first, too"
            verdict = verdict._replace(detail=f"{verdict.detail}; a second run before {itself}")
        return verdict, seconds

    def _resume(self, row: Row, folder: Path) -> tuple[Verdict, dict[str, float]]:
        """An unbroken run before against one that stops before and goes on at present."""
        whole, broken = folder / "whole", folder / "broken"
        before = self._run(self._before, row, whole)
        if before.status:
            return failed_before(before), {"before": before.seconds}
        metrics = (broken / "metrics.jsonl", broken / "stream-0/metrics.jsonl")
        stopped = self._run(
            self._before, row, broken, "--checkpoint-every", "6",
            stop_when=lambda: max(map(number_of_lines, metrics)) >= _STOP_STEPS,
        )  # fmt: skip
        if stopped.status != _STOPPED:  # 0, too: it came to its end
            return failed_before(stopped), {"before": before.seconds}
        stages = row.values["action"].removeprefix("resume-")
        present = self._place.naspipe(
            self._present, "train", "--resume", str(broken), "--stages", stages, "--quiet"
        )
        verdict = judge(before, present, lambda: run_difference(whole, broken))
        seconds = {
            "before": before.seconds, "stopped": stopped.seconds, "present": present.seconds
        }  # fmt: skip
        return verdict, seconds

    def _search(self, row: Row, folder: Path) -> tuple[Verdict, dict[str, float]]:
        """One run before, searched by both."""
        run = folder / "run"
        trained = self._run(self._before, row, run)
        if trained.status:
            return failed_before(trained), {"before": trained.seconds}
        before, present = (
            self._place.naspipe(
                version, "search", str(run), *row.search, "--name", version.name
            )
            for version in (self._before, self._present)
        )  # fmt: skip
        files = [run / f"search-{name}/candidates.jsonl" for name in ("before", "present")]
        verdict = judge(before, present, lambda: file_difference(*files))
        return verdict, {"before": before.seconds, "present": present.seconds}

    def _run(
        self,
        version: Version,
        row: Row,
        path: Path,
        *more: str,
        stop_when: Callable[[], bool] | None = None,
    ) -> Ended:
        words = [*row.train, *more, "--run-dir", str(path)]
        if row.values["wire"] == "tcp":
            words += ["--set", f"port={self._port}"]
        return self._place.naspipe(version, "train", *words, stop_when=stop_when)
