"""The parts of the check that measure: copies, paper scale, swapping."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from naspipe.runtime.jobs.workload import Workload
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
    """nlp.c1 at paper scale, plain SGD: a budget of three subnets, and all on the device."""
    name, scale = ("nlp.c3", "tiny") if arguments.toy else ("nlp.c1", "paper")
    end = time.monotonic() + arguments.seconds * 0.9
    named = synthetic(name, scale, optimizer="SGD")
    each = subnet_bytes(named)
    # Layers lie in host memory, in the checkpoint's buffer and in its file; leave half of it free.
    count = max(1, min(2 if arguments.toy else 8, int(free_host_bytes() * 0.5 / 3 / each)))
    findings.put(
        scale=scale, subnet_bytes=each, three_subnets_bytes=3 * each,
        note=f"{count} of {named.space.candidate_counts[0]} candidates of each block are sampled, "
        f"so that the layers fit the host memory that is free and the time",
    )  # fmt: skip
    trial = timed_run(named, Subset(named.space, 2, 10), _execution(arguments.device, "3x"))
    findings.put(trial=trial)
    once = trial["seconds_in_all"] + count * trial["first_use_seconds"]
    left = (end - time.monotonic()) / 4 - once
    steps = 6 if arguments.toy else min(100, max(16, int(left / trial["step_seconds"])))
    _compare_pairs(named, Subset(named.space, count, count + steps), arguments, end, findings)
    swapped = findings.record["runs"][-1]["swapped"]["stages"][0]
    findings.put(load_of_pinned_ceiling=_of_ceiling(arguments.output, swapped))


def _of_ceiling(output: Path, stage: dict[str, Any]) -> float | None:
    """Bandwidth of the run's loads over that of a pinned copy, where the copies were measured."""
    copies = output.with_name("copies.json")
    if not copies.exists():
        return None
    ceiling = json.loads(copies.read_text()).get("pinned_load_bytes_per_second")
    return stage["load_bytes_per_second"] / ceiling if ceiling else None


def compare_plain(arguments: argparse.Namespace, findings: Findings) -> None:
    """One stage beside a plain loop on the same subnets, in alternation."""
    end = time.monotonic() + arguments.seconds * 0.9
    wanted = [("nlp.c3", "tiny")] if arguments.toy else [("nlp.c1", "small"), ("cv.c3", "tiny")]
    steps, count = (4, 2) if arguments.toy else (60, 4)
    chosen = {" ".join(key): synthetic(*key, optimizer="SGD") for key in wanted}
    rows: dict[str, list[dict[str, float]]] = {name: [] for name in chosen}
    longest = 0.0
    while len(min(rows.values(), key=len)) < 3 and time.monotonic() + longest < end:
        for name, named in chosen.items():
            start = time.monotonic()
            subset = Subset(named.space, count, count + steps)
            plain = plain_step_seconds(named, subset, arguments.device)
            ours = timed_run(named, subset, _execution(arguments.device))["step_seconds"]
            rows[name].append({"plain_step_seconds": plain, "step_seconds": ours})
            longest = max(longest, time.monotonic() - start)
            speeds = {
                each: statistics.median(row["plain_step_seconds"] / row["step_seconds"]
                                        for row in found)
                for each, found in rows.items() if found
            }  # fmt: skip
            findings.put(is_good=len(speeds) == len(chosen), summary=speeds, pairs=rows)


def compare_swapping(arguments: argparse.Namespace, findings: Findings) -> None:
    """Throughput with a budget of three subnets over that with all layers on the device."""
    end = time.monotonic() + arguments.seconds * 0.9
    named = synthetic("nlp.c3", "tiny" if arguments.toy else "small", optimizer="SGD")
    steps, count = (4, 2) if arguments.toy else (40, 6)
    _compare_pairs(named, Subset(named.space, count, count + steps), arguments, end, findings)


def _compare_pairs(
    named: Workload, subset: Subset, arguments: argparse.Namespace, end: float, findings: Findings
) -> None:
    """Runs in alternation, with all layers on the device and with a budget, as time allows."""
    pairs: list[tuple[float, float]] = []
    runs: list[Any] = []
    longest = 0.0
    while len(pairs) < (1 if arguments.toy else 7) and time.monotonic() + longest < end:
        start = time.monotonic()
        resident = timed_run(named, subset, _execution(arguments.device))
        swapped = timed_run(named, subset, _execution(arguments.device, "3x"))
        longest = max(longest, time.monotonic() - start)
        runs.append({"resident": resident, "swapped": swapped})
        pairs.append((resident["subnets_per_hour"], swapped["subnets_per_hour"]))
        ratios = [after / before for before, after in pairs]
        summary = {
            "swapped_over_resident": statistics.median(ratios),
            "least": min(ratios), "most": max(ratios), "pairs": len(pairs),
            **{
                key: statistics.median(run["swapped"][key] for run in runs)
                for key in ("hit_rate", "stall_ratio", "subnets_per_hour")
            },
        }  # fmt: skip
        findings.put(is_good=True, summary=summary, space=named.space.name, runs=runs,
                   candidates_sampled=subset.count)  # fmt: skip


def _execution(device: str, budget: str | None = None) -> dict[str, Any]:
    return {"device": device, **({"memory_budget": budget} if budget else {})}
