"""Bits on a device against plain loops on that device: ``python -m tests.gpu.bits GROUP ...``.

A program of its own, since a process that has used CUDA cannot fork stages. One JSON line for each
case, as soon as its verdict is there.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from tests.gpu import judged, resumed, taught, trained
from tests.gpu.verdicts import judge

GROUPS = {
    "stages": trained.stages,
    "budgets": trained.budgets,
    "optimizers": trained.optimizers,
    "ipc": trained.ipc,
    "resume": resumed.resumes,
    "judging": judged.judgements,
    "groups": trained.groups,
    "teachers": taught.teachers,
}
"""Cases by what they look at; each group within two minutes."""

ON_GPUS_ONLY = {"short of memory"}


def cases(group, device):
    """By name, the most telling first."""
    found = GROUPS[group]()
    return {name: case for name, case in found.items() if device == "cuda" or name not in
            ON_GPUS_ONLY}  # fmt: skip


def main():
    """Run the cases; exit status 0 whatever their verdicts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("group", choices=GROUPS)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--case", help="only this one")
    arguments = parser.parse_args()

    def report(name, verdict, seconds):
        line = {"case": name, "verdict": verdict, "seconds": round(seconds, 1)}
        print(json.dumps(line), flush=True)

    chosen = cases(arguments.group, arguments.device)
    if arguments.case:
        chosen = {arguments.case: chosen[arguments.case]}
    with tempfile.TemporaryDirectory(prefix="naspipe-bits-") as scratch:
        judge(chosen, arguments.device, Path(scratch), report)


if __name__ == "__main__":
    main()
