"""The wheel, as the image has it: built from what .dockerignore lets in, alone with what it needs.

A new virtual environment gets the wheel and its dependencies. There a supernet is trained, searched
and exported, far from these sources. With hadolint installed the Dockerfile is checked, too.
Writes artifacts/image/wheel.json.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parent.parent
RUN = "runs/two"
NAMED = f"{RUN} --space cv.c3 --data digits"
COMMANDS = (
    "naspipe --version",
    "naspipe train cv.c3 --data digits --steps 20 --seed 1 --stages 1 --run-dir runs/one",
    f"naspipe train cv.c3 --data digits --steps 20 --seed 1 --stages 2 --run-dir {RUN}",
    f"naspipe compare runs/one {RUN}",
    f"naspipe search {RUN} --budget 4",
    f"naspipe report {RUN} -o report.html",
    f"naspipe export {RUN} --subnet best -o exported",
    "python -c 'import sys; sys.path.insert(0, \"exported\"); import model; model.load().eval()'",
)
"""What a user does, in order, in an empty directory."""
LIMIT = 600
"""Seconds of one command."""


def allowed(ignored: str) -> list[str]:
    """What a list that begins with ``*`` lets in again: the names behind ``!``."""
    lines = [line.strip() for line in ignored.splitlines()]
    assert "*" in lines, "expected .dockerignore to leave everything out first"
    return [line[1:] for line in lines if line.startswith("!")]


def copy_context(target: Path) -> None:
    """What ``docker build`` would be sent."""
    for name in allowed((ROOT / ".dockerignore").read_text()):
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name, target / name, ignore=shutil.ignore_patterns("__pycache__")
            )
        else:
            shutil.copy(ROOT / name, target / name)


def call(command: Sequence[str], place: Path, environment: dict[str, str]) -> tuple[int, float]:
    """Exit status and seconds; what a command that fails says is shown."""
    start = time.monotonic()
    done = subprocess.run(
        command, cwd=place, env=environment, timeout=LIMIT, capture_output=True, text=True
    )
    if done.returncode:
        print(f"{' '.join(command)}:\n{done.stdout}{done.stderr}", file=sys.stderr)
    return done.returncode, time.monotonic() - start


def check(scratch: Path) -> list[dict[str, object]]:
    """Each step's exit status and seconds; behind one that fails nothing is done."""
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("PYTHON")},
        "HOME": str(scratch / "home"), "PATH": f"{scratch / 'venv/bin'}:{os.environ['PATH']}",
    }  # fmt: skip
    for name in ("context", "home", "work"):
        (scratch / name).mkdir()
    copy_context(scratch / "context")
    steps: list[tuple[str, list[str], Path]] = []
    if linter := shutil.which("hadolint"):
        steps.append(("hadolint Dockerfile", [linter, str(ROOT / "Dockerfile")], ROOT))
    context, pip = scratch / "context", str(scratch / "venv/bin/pip")
    steps += [
        ("pip wheel", [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps",
                       "--no-build-isolation", "-w", str(scratch / "wheels"), "."], context),
        ("python -m venv", [sys.executable, "-m", "venv", str(scratch / "venv")], scratch),
        ("pip install", ["bash", "-c", f"{pip} install -q -c constraints.txt "
                         f"{scratch / 'wheels'}/naspipe-*.whl"], context),
        *((command, ["bash", "-c", command], scratch / "work") for command in COMMANDS),
    ]  # fmt: skip
    rows: list[dict[str, object]] = []
    for name, command, place in steps:
        status, seconds = call(command, place, environment)
        rows.append({"step": name, "status": status, "seconds": round(seconds, 1)})
        if status:
            break
    return rows


def main() -> int:
    """Check, print and write; 1 where a step failed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--output", type=Path, default=ROOT / "artifacts/image/wheel.json")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        rows = check(Path(scratch))
    table = Table("step", "exit status", "seconds", box=SIMPLE_HEAD)
    for row in rows:
        table.add_row(*map(str, row.values()))
    Console(highlight=False).print(table)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(rows, indent=1) + "\n")
    return int(any(row["status"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
