"""Measure naspipe beside what else trains a supernet here: the same work, in alternation.

Every run is a process of its own. A figure is subnets per second of the training itself: data,
start-up and checkpoints are left out. Written to artifacts/peers/ after every run: a second start
goes on where the first one ended (--minutes), and --fresh begins anew.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scripts.bench.common import ROOT
from scripts.paper.common import Headline, Result, keep, show
from scripts.paper.summary import write_summary
from scripts.peers import one_shot
from scripts.peers.contenders import NETWORKS, PEERS, SPACES
from scripts.peers.watched import Watched, run_watched
from scripts.peers.work import Work

TRIES, DISTURBED = 2, 0.12
"""A run whose threads waited for a processor for more than this share of their time is made again,
and the least disturbed of so many is kept: others work on this machine too."""
SKIPPED = 3
"""Exit status of a peer that cannot run here; its last line says why."""


DIFFERS = (
    "tiny spaces on this machine's processors; the paper compares whole systems on GPUs. "
    "Samplers: 'fixed' trains one subnet again and again, for the pipelines: under CSP such a "
    "stream is sequential, as every subnet reads what the one before wrote. ScheduleGPipe is "
    "measured on images only: text batches change their shape with every step and hand masks on, "
    "which its stages with fixed shapes do not take. DDP reduces the gradients of the whole "
    "supernet in every step. DDP and NNI make all layers before they are timed; naspipe and the "
    "plain loop make each at its first use"
)


def parse(words: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--spaces", nargs="+", default=[*SPACES, *NETWORKS])
    parser.add_argument("--peers", nargs="+", default=list(PEERS), choices=list(PEERS),
                        metavar="PEER", help=", ".join(PEERS))  # fmt: skip
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after so long")
    parser.add_argument("--fresh", action="store_true", help="forget the runs that are kept")
    parser.add_argument("--output", type=Path, default=ROOT / "artifacts", metavar="DIR")
    parser.add_argument("--one", choices=list(PEERS), help="measure one run and print it")
    parser.add_argument("--sampler", default="uniform", help="of the run that --one measures")
    return parser.parse_args(words)


def measure_one(arguments: argparse.Namespace) -> int:
    """In this process."""
    work = Work(space=arguments.spaces[0], sampler=arguments.sampler, steps=arguments.steps)
    try:
        print(json.dumps(PEERS[arguments.one].run(work)))
    except ImportError as error:
        print(f"{one_shot.MISSING} ({error})", file=sys.stderr)
        return SKIPPED
    return 0


def measure_apart(arguments: argparse.Namespace, case: tuple[str, str, str]) -> dict[str, Any]:
    """In a new process, so that no run finds memory or threads that another left."""
    space, sampler, peer = case
    command = [sys.executable, str(Path(__file__).parent), "peers", "--one", peer]
    command += ["--sampler", sampler, "--spaces", space, "--steps", str(arguments.steps)]
    tries: list[Watched] = []
    while len(tries) < TRIES and all(each.waited > DISTURBED for each in tries):
        tries.append(run_watched(command))
    done = min(tries, key=lambda each: each.waited)
    lines = [line for line in done.err.splitlines() if line.strip()]
    if done.status == SKIPPED:
        return {"skipped": lines[-1]}
    if done.status:
        raise RuntimeError(f"{case}: {lines[-1] if lines else done.status}")
    found: dict[str, Any] = json.loads(done.out.splitlines()[-1])
    losses = json.dumps(found.pop("losses"))
    digest = hashlib.sha256(losses.encode()).hexdigest()[:16]
    return {**found, "losses": digest, "waited": round(done.waited, 3)}


Found = dict[tuple[str, str, str], list[dict[str, Any]]]
"""The runs of each space, sampler and peer."""


def kept_runs(arguments: argparse.Namespace) -> Found:
    """Those of an earlier start.

    Raises:
        ValueError: when they are of another number of steps.
    """
    path = arguments.output / "peers/result.json"
    if arguments.fresh or not path.exists():
        return {}
    content = json.loads(path.read_text())
    if content["settings"]["steps"] != arguments.steps:
        raise ValueError(f"{path}: expected runs of {arguments.steps} steps, found "
                         f"{content['settings']['steps']}; --fresh begins anew")  # fmt: skip
    return {tuple(name.split(" | ")): runs for name, runs in content["extra"]["runs"].items()}


def main(words: Sequence[str] | None = None) -> int:
    """Measure all in alternation, print and write."""
    arguments = parse(words)
    if arguments.one:
        return measure_one(arguments)
    cases = [
        (space, sampler, name)
        for space in arguments.spaces
        for sampler in ("uniform", "spaced:8", "fixed")
        for name in arguments.peers
        if sampler in PEERS[name].samplers and space in PEERS[name].spaces
    ]
    found: Found = {**{case: [] for case in cases}, **kept_runs(arguments)}
    result = result_of(arguments, found)
    start = time.monotonic()
    for repetition in range(arguments.repetitions):
        for case in (case for case in cases if len(found[case]) <= repetition):
            if (spent := time.monotonic() - start) > arguments.minutes * 60:
                break
            found[case].append(measure_apart(arguments, case))
            speed = found[case][-1].get("steps_per_second")
            print(f"{repetition} {' | '.join(case)}: {speed and round(speed, 2)} [{spent:.0f} s]",
                  file=sys.stderr, flush=True)  # fmt: skip
            result = result_of(arguments, found)
            keep(result, "scripts/bench peers", arguments.output / "peers", draw)
    write_summary(arguments.output)
    show(result)
    return 0


def result_of(arguments: argparse.Namespace, found: Found) -> Result:
    """Medians and spread, each beside the plain loop of the same round."""
    rows: list[dict[str, Any]] = []
    for (space, sampler, name), runs in found.items():
        if not runs:
            continue
        row: dict[str, Any] = {"space": space, "sampler": sampler, "peer": name}
        if "skipped" in runs[0]:
            rows.append({**row, "note": runs[0]["skipped"]})
            continue
        speeds = [run["steps_per_second"] for run in runs]
        base = "plain loop, accumulating" if space in NETWORKS else "plain loop, 1 thread"
        plain = found.get((space, sampler, base), [])
        ratios = [s / run["steps_per_second"] for s, run in zip(speeds, plain, strict=False)]
        rows.append({
            **row, "median": statistics.median(speeds), "least": min(speeds), "most": max(speeds),
            "over_plain": statistics.median(ratios) if ratios else None,
            "waited": statistics.median(run["waited"] for run in runs),
            "mean_of_last_losses": runs[0]["mean_of_last_losses"],
            "losses_as_plain": runs[0]["losses"] == plain[0]["losses"] if plain else None,
            "note": PEERS[name].result,
        })  # fmt: skip
    return Result(
        experiment="peers",
        title=f"Peers, {arguments.steps} steps",
        kind="real",
        rows=rows,
        headlines=[
            Headline(
                f"{r['space']}, {r['sampler']}: {r['peer']}",
                f"{r['median']:.2f} subnets/s ({r['least']:.2f} to {r['most']:.2f})"
                if "median" in r
                else f"skipped: {r['note']}",
                "-",
            )
            for r in rows
        ],
        differs=DIFFERS,
        settings={"steps": arguments.steps, "repetitions": max(map(len, found.values()))},
        extra={"runs": {" | ".join(case): runs for case, runs in found.items()}},
    )


def draw(result: Result, figure: Any) -> None:
    """One row of bars per space and sampler."""
    groups = list(dict.fromkeys((row["space"], row["sampler"]) for row in result.rows))
    figure.set_size_inches(9, 1.5 + 1.7 * len(groups))
    axes = figure.subplots(len(groups), 1, squeeze=False)
    colours = {name: f"C{number % 7}" for number, name in enumerate(PEERS)}
    for (axis,), group in zip(axes, groups, strict=True):
        rows = [r for r in result.rows if (r["space"], r["sampler"]) == group and "median" in r]
        names, medians = [r["peer"] for r in rows], [r["median"] for r in rows]
        spread = [[r["median"] - r["least"] for r in rows], [r["most"] - r["median"] for r in rows]]
        axis.barh(names, medians, xerr=spread, color=[colours[name] for name in names])
        axis.invert_yaxis()
        axis.set_title(f"{group[0]}, {group[1]}: subnets per second", fontsize=10, loc="left")
