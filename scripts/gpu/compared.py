"""The parts of the check that compare bits with plain loops on the same device."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import naspipe
from naspipe.plan.costs import first_of_kind
from naspipe.profiling.profiles import profile_apart
from scripts.gpu.findings import Findings
from scripts.gpu.runs import synthetic
from tests.gpu.bits import cases
from tests.gpu.trained import Case
from tests.gpu.verdicts import IDENTICAL, judge


def compare_group(arguments: argparse.Namespace, findings: Findings) -> None:
    """Tiny networks: the cases of ``tests/gpu/bits.py`` that have the part's name."""
    _compare(cases(arguments.part, arguments.device), arguments.device, findings)


def compare_real(arguments: argparse.Namespace, findings: Findings) -> None:
    """Real spaces on 1, 2 and 4 stages."""
    wanted: list[tuple[str, str, int, tuple[int, ...]]] = [
        ("nlp.c3", "tiny", 16, (1, 2, 4)), ("cv.c3", "tiny", 16, (1, 2, 4)),
        ("nlp.c1", "small", 6, (1, 2, 4)),
    ]  # fmt: skip
    if arguments.toy:
        wanted = [("nlp.c3", "tiny", 4, (1, 2))]
    chosen = {}
    for name, scale, steps, stages in wanted:
        named = synthetic(name, scale)
        chosen[f"{name} {scale}"] = Case(
            space=named.space, data=named.data, loss=named.loss, steps=steps, stages=stages,
            options={"momentum": 0.9}, lr=0.01,
        )  # fmt: skip
    _compare(chosen, arguments.device, findings)


def verify_real(arguments: argparse.Namespace, findings: Findings) -> None:
    """Real spaces on 1 and 2 stages, each run verified by its own plain loop on the device."""
    rows: list[dict[str, Any]] = []
    wanted = [(name, stages) for name in ("nlp.c3", "cv.c3") for stages in (1, 2)]
    for name, stages in wanted[: 1 if arguments.toy else None]:
        rows.append(_verified(name, stages, arguments, "auto"))
        _put(rows, findings)


def split_real(arguments: argparse.Namespace, findings: Findings) -> None:
    """Real spaces whose backwards are split, and how much longer that takes, by candidate."""
    rows: list[dict[str, Any]] = []
    for name in ("nlp.c3", "cv.c3")[: 1 if arguments.toy else None]:
        rows.append(_verified(name, 2, arguments, "split"))
        named = synthetic(name, "tiny")
        costs = profile_apart(named, 60, arguments.device).costs
        rows[-1]["over_whole"] = {
            named.space.option_label(*place): round(ratio, 2)
            for place in sorted(costs)
            if place[0] in first_of_kind(named.space) and (ratio := costs[place].split_ratio)
        }
        _put(rows, findings)


def _verified(
    name: str, stages: int, arguments: argparse.Namespace, backward: str
) -> dict[str, Any]:
    """A run of a real space, and what its plain loop says of it."""
    named, steps = synthetic(name, "tiny"), 2 if arguments.toy else 8
    with tempfile.TemporaryDirectory(prefix="naspipe-verify-") as scratch:
        run = naspipe.train(
            named.space, named.data, named.loss, steps=steps, lr=0.01, stages=stages,
            device=arguments.device, verify="all", run_dir=Path(scratch) / "run",
            backward=backward, progress=False,
        )  # fmt: skip
        verified = run.manifest["verified"]
    return {"space": name, "stages": stages, "verified": verified, "steps": steps}


def _put(rows: list[dict[str, Any]], findings: Findings) -> None:
    good = sum(row["verified"] == {"steps": row["steps"]} for row in rows)
    findings.put(is_good=good == len(rows), summary=f"{good} of {len(rows)} verified", runs=rows)


def _compare(chosen: dict[str, Any], device: str, findings: Findings) -> None:
    """Every case's verdict is written as soon as it is there."""
    rows: list[dict[str, Any]] = []

    def report(name: str, verdict: str, seconds: float) -> None:
        rows.append({"case": name, "verdict": verdict, "seconds": round(seconds, 1)})
        good = sum(row["verdict"] == IDENTICAL for row in rows)
        print(rows[-1], flush=True)
        findings.put(
            is_good=good == len(chosen), summary=f"{good} of {len(chosen)} identical", cases=rows,
            to_come=[*chosen][len(rows):],
        )  # fmt: skip

    findings.put(to_come=[*chosen])
    with tempfile.TemporaryDirectory(prefix="naspipe-bits-") as scratch:
        judge(chosen, device, Path(scratch), report)
