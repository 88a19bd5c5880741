"""Run what measured figures come from, row by row, from one commit.

    scripts/measure.py --list
    scripts/measure.py                   every row of the README's table, four hours on two cores
    scripts/measure.py speed peers       these only

Each row's own results go where its script puts them. artifacts/measured.json holds, for each row,
its command, the commit, the machine, and what else went on meanwhile: the processors that other
work took, and those that the machine's host kept to itself. Run it on a fresh clone with nothing
else running.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from naspipe.config.errors import ConfigError  # noqa: E402
from naspipe.machine.determinism import describe_environment  # noqa: E402
from naspipe.store.files import write_json  # noqa: E402

ROWS: dict[str, tuple[str, ...]] = {
    "bits": ("check_bits.py",),
    "memory": ("check_memory.py --all",),
    "kills": ("fault_storm.py",),
    "speed": (
        "bench settings nlp.c1 stages=1 plain stages=2 'plain x2' --samplers spaced:8 uniform "
        "--steps 40 --output artifacts/scaling/nlp.c1.json",
    ),
    "one stage": tuple(
        f"bench settings {space} plain stages=1 --samplers spaced:8 uniform "
        f"--output artifacts/scaling/one_stage_{space}.json"
        for space in ("nlp.c1", "nlp.c3", "cv.c1", "cv.c3")
    ),
    "hits": ("bench emulated",),
    "search": ("bench search",),
}
"""Of the README's table, what is run for each row."""
MORE: dict[str, tuple[str, ...]] = {
    "peers": ("bench peers --fresh",),
    "groups": (
        "bench settings vgg16 stages=1 groups=2 stages=2 'stages=1 x2' --steps 60 "
        "--define passes=accumulate:8 --output artifacts/groups/real.json",
    ),
    "checkpoints": (
        "bench settings nlp.c1 stages=2 'stages=2 checkpoint_every=100' --steps 420 "
        "--output artifacts/faults/checkpoint_cost.json",
    ),
    "budget": (
        "bench settings nlp.c2 stages=2 'stages=2 memory_budget=1.5x' "
        "--output artifacts/residency/pairs.json",
    ),
    "partitions": (
        "bench settings nlp.c1 'stages=2 partition=static' 'stages=2 partition=balanced' "
        "--samplers spaced:4 --output artifacts/partition_real/result.json",
    ),
}
"""Of docs/measured.md."""


class Seconds(NamedTuple):
    """Processor seconds since the machine started; ``own`` are those of children that ended."""

    at: float
    busy: float
    stolen: float
    own: float

    @classmethod
    def now(cls) -> Seconds:
        """As Linux tells them, of all processors together."""
        user, nice, system, _, _, irq, softirq, stolen = (
            int(ticks) / os.sysconf("SC_CLK_TCK")
            for ticks in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
        )
        taken = resource.getrusage(resource.RUSAGE_CHILDREN)
        busy = user + nice + system + irq + softirq
        return cls(time.monotonic(), busy, stolen, taken.ru_utime + taken.ru_stime)

    def load_since(self, before: Seconds) -> dict[str, float]:
        """How many processors each took on average, and for how many seconds."""
        seconds = self.at - before.at
        own = self.own - before.own
        others = max(0.0, self.busy - before.busy - own)
        return {
            "seconds": round(seconds, 1),
            "own_processors": round(own / seconds, 3),
            "other_processors": round(others / seconds, 3),
            "stolen_processors": round((self.stolen - before.stolen) / seconds, 3),
        }


def commit_of(root: Path) -> str:
    """The commit of a checkout whose files, results left out, are as that has them.

    Raises:
        ConfigError: when one is not.
    """
    changed = _git(root, "status", "--porcelain", "--", ".", ":!artifacts")
    if changed:
        raise ConfigError(
            f"expected the files of one commit, found {changed.splitlines()[0].split()[-1]} "
            f"changed; commit it, or use a fresh clone"
        )
    return _git(root, "rev-parse", "HEAD")


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=root, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def run_one(command: str, root: Path = ROOT) -> dict[str, Any]:
    """Run a script in a process of its own, and say how it ended and what went on meanwhile."""
    begun, before = datetime.now(UTC), Seconds.now()
    status = subprocess.run(
        [sys.executable, *shlex.split(f"scripts/{command}")], cwd=root, check=False
    ).returncode
    return {
        "command": f"scripts/{command}",
        "status": status,
        "begun": begun.isoformat(timespec="seconds"),
        **Seconds.now().load_since(before),
    }


def main(words: Sequence[str] | None = None) -> int:
    """The exit status is 1 when a script's was not 0."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", nargs="*", metavar="ROW", help="default: the README's")
    parser.add_argument("--list", action="store_true", help="say what there is, and run nothing")
    parser.add_argument("--output", type=Path, default=ROOT / "artifacts/measured.json")
    arguments = parser.parse_args(words)
    if unknown := [row for row in arguments.rows if row not in ROWS | MORE]:
        parser.error(f"expected rows among {', '.join(ROWS | MORE)}, found {unknown[0]}")
    rows = {row: (ROWS | MORE)[row] for row in arguments.rows or ROWS}
    if arguments.list:
        for row, commands in (ROWS | MORE).items():
            for command in commands:
                print(f"{row:12} scripts/{command}")
        return 0
    try:
        commit = commit_of(ROOT)
    except ConfigError as error:
        parser.error(str(error))
    kept = json.loads(arguments.output.read_text())["rows"] if arguments.output.exists() else {}
    failed = False
    for row, commands in rows.items():
        found = [run_one(command) for command in commands]
        failed |= any(each["status"] for each in found)
        kept[row] = {"commit": commit, "environment": describe_environment(), "runs": found}
        write_json(arguments.output, {"rows": kept})
    report(kept)
    return int(failed)


def report(rows: dict[str, Any]) -> None:
    """A line for each script that was run."""
    print(f"{'row':12} {'commit':9} {'status':>6} {'seconds':>8} {'own':>6} {'others':>6} stolen")
    for row, found in rows.items():
        for run in found["runs"]:
            load = [run[f"{whose}_processors"] for whose in ("own", "other", "stolen")]
            ended = f"{found['commit'][:8]:9} {run['status']:6} {run['seconds']:8.0f}"
            print(f"{row:12} {ended} {load[0]:6.2f} {load[1]:6.2f} {load[2]:6.2f}")


if __name__ == "__main__":
    sys.exit(main())
