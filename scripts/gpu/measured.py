"""The parts of the check that measure: copies, paper scale, swapping."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from naspipe.jobs.workload import Workload
from scripts.gpu.findings import Findings
from scripts.gpu.runs import (
    Subset,
    free_host_bytes,
    plain_step_seconds,
    subnet_bytes,
    synthetic,
    timed_run,
)

MIB = 1 << 20

Runs = dict[str, dict[str, list[dict[str, Any]]]]
"""By what is trained and by kind."""


def measure_copies(arguments: argparse.Namespace, findings: Findings) -> None:
    """The ceiling of one copy each way: pinned and pageable host memory."""
    is_gpu = arguments.device == "cuda"
    size = 256 * MIB if is_gpu else 4 * MIB
    there = torch.empty(size, dtype=torch.uint8, device=arguments.device)
    figures: dict[str, Any] = {"copy_bytes": size}
    for kind in ("pinned", "pageable"):
        host = torch.zeros(size, dtype=torch.uint8, pin_memory=kind == "pinned" and is_gpu)
        for way, target, source in (("load", there, host), ("save", host, there)):
            speeds = []
            for _ in range(8):
                start = time.perf_counter()
                target.copy_(source, non_blocking=True)
                if is_gpu:
                    torch.cuda.synchronize()
                speeds.append(size / (time.perf_counter() - start))
            figures[f"{kind}_{way}_bytes_per_second"] = statistics.median(speeds[2:])
    summary = {key: f"{value / 1e9:.1f} GB/s" for key, value in figures.items() if "per" in key}
    findings.put(is_good=True, summary=summary, **figures)


def train_paper(arguments: argparse.Namespace, findings: Findings) -> None:
    """nlp.c1 at paper scale, plain SGD: a plain loop, all on the device, a budget of 3 subnets."""
    name, scale = ("nlp.c3", "tiny") if arguments.toy else ("nlp.c1", "paper")
    named = synthetic(name, scale, optimizer="SGD")
    each = subnet_bytes(named)
    # Layers lie in host memory, in the checkpoint's buffer and in its file; leave half of it free.
    fitting = int(free_host_bytes() * 0.5 / 3 / each)
    steps, count = (4, 2) if arguments.toy else (20, max(1, min(5, fitting)))
    findings.put(
        scale=scale, subnet_bytes=each, three_subnets_bytes=3 * each,
        note=f"{count} of {named.space.candidate_counts[0]} candidates of each block are sampled, "
        f"so that the layers fit the host memory that is free and the time",
    )  # fmt: skip
    kinds = ("plain", "resident", "swapped")
    _alternate({f"{name} {scale}": named}, kinds, (steps, count), arguments, findings)
    swapped = findings.record["runs"][f"{name} {scale}"]["swapped"][-1]["stages"][0]
    findings.put(load_of_pinned_ceiling=_of_ceiling(arguments.output, swapped))


def _of_ceiling(output: Path, stage: dict[str, Any]) -> float | None:
    """Bandwidth of the run's loads over that of a pinned copy, where the copies were measured."""
    copies = output.with_name("copies.json")
    if not copies.exists():
        return None
    ceiling = json.loads(copies.read_text()).get("pinned_load_bytes_per_second")
    return stage["load_bytes_per_second"] / ceiling if ceiling else None


def compare_plain(arguments: argparse.Namespace, findings: Findings) -> None:
    """One stage beside a plain loop on the same subnets."""
    wanted = [("nlp.c3", "tiny")] if arguments.toy else [("nlp.c1", "small"), ("cv.c3", "tiny")]
    chosen = {" ".join(key): synthetic(*key, optimizer="SGD") for key in wanted}
    sizes = (4, 2) if arguments.toy else (60, 4)
    _alternate(chosen, ("plain", "resident"), sizes, arguments, findings)


def compare_swapping(arguments: argparse.Namespace, findings: Findings) -> None:
    """Throughput with a budget of three subnets over that with all layers on the device."""
    scale = "tiny" if arguments.toy else "small"
    named = synthetic("nlp.c3", scale, optimizer="SGD")
    sizes = (4, 2) if arguments.toy else (40, 6)
    _alternate({f"nlp.c3 {scale}": named}, ("resident", "swapped"), sizes, arguments, findings)


def _alternate(
    chosen: dict[str, Workload], kinds: Sequence[str], sizes: tuple[int, int],
    arguments: argparse.Namespace, findings: Findings,
) -> None:  # fmt: skip
    """Runs of each kind in turn, as often as there is time for, on the same subnets.

    Args:
        chosen: what is trained, by name.
        kinds: ``plain``, ``resident`` or ``swapped``, the slowest last.
        sizes: subnets that are timed, and candidates of each block that are sampled.
        arguments: of the part.
        findings: hold every run as soon as it is over.
    """
    end = time.monotonic() + arguments.seconds * 0.9
    steps, count = sizes
    runs: Runs = {name: {kind: [] for kind in kinds} for name in chosen}
    longest = 0.0
    for turn in range(1 if arguments.toy else 7):
        start = time.monotonic()
        if start + longest > end:
            break
        for name, named in chosen.items():
            subset = Subset(named.space, count, count + steps)
            for kind in kinds:
                runs[name][kind].append(_run(named, subset, kind, arguments.device))
                findings.put(
                    is_good=turn > 0 or (name == [*chosen][-1] and kind == kinds[-1]),
                    summary=_medians(runs), candidates_sampled=count, runs=runs,
                )  # fmt: skip
        longest = time.monotonic() - start


def _run(named: Workload, subset: Subset, kind: str, device: str) -> dict[str, Any]:
    if kind == "plain":
        return {"step_seconds": plain_step_seconds(named, subset, device)}
    budget = {"memory_budget": "3x"} if kind == "swapped" else {}
    return timed_run(named, subset, {"device": device, **budget})


def _medians(runs: Runs) -> dict[str, Any]:
    """Seconds per subnet of each kind, and the speed of each over the one before it, by turns."""
    found: dict[str, Any] = {}
    for name, kinds in runs.items():
        seconds = {kind: [each["step_seconds"] for each in made] for kind, made in kinds.items()}
        found[name] = {k: statistics.median(made) for k, made in seconds.items() if made}
        for before, after in pairwise(seconds):
            if ratios := [b / a for b, a in zip(seconds[before], seconds[after], strict=False)]:
                spread = (min(ratios), statistics.median(ratios), max(ratios))
                found[name][f"speed of {after} over {before}: least, median, most"] = spread
    return found
