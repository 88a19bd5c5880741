"""What the records of long runs take, and what reading them costs; artifacts/records/.

A run of some thousand steps of six layers on two stages is trained. Its records are then written
again and again behind themselves, with later sequence IDs and times, by the writers of a run, until
they have each length. Of each: bytes per 1,000 steps, and the seconds (of the clock and of the
processor) and the memory of `naspipe log`, `log --layer`, `compare` and `report`, each in a process
of its own, torch's import included.
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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import nn

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

import naspipe  # noqa: E402
from naspipe.config.ids import (  # noqa: E402
    Access,
    SequenceId,
    Version,
)
from naspipe.config.rules import Lag  # noqa: E402
from naspipe.machine.determinism import describe_environment  # noqa: E402
from naspipe.store.access_log import AccessLogWriter, read_access_log  # noqa: E402
from naspipe.store.losses import (  # noqa: E402
    LossWriter,
    MetricsFile,
    read_metrics,
)
from naspipe.store.run_directory import RunDirectory  # noqa: E402
from tests.equivalence.spaces import vectors  # noqa: E402

MIB = 2**20
STAGES = 2
COMMANDS = {
    "log": ["log", "RUN"],
    "log --layer": ["log", "RUN", "--layer", "1.0"],
    "compare": ["compare", "RUN", "OTHER"],
    "report": ["report", "RUN"],
}


def main() -> None:
    """Train, lengthen, measure; print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", type=int, nargs="+", default=[10_000, 30_000, 100_000])
    parser.add_argument("--steps", type=int, default=2000, help="that are really trained")
    parser.add_argument("--limit", type=float, default=300, help="seconds of a command, at most")
    parser.add_argument("--output", type=Path, default=ROOT / "artifacts/records/records.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        base = trained(Path(folder) / "base", options.steps)
        rows: list[dict[str, Any]] = []
        found = {"environment": describe_environment(), "segments": rows}
        options.output.parent.mkdir(parents=True, exist_ok=True)
        for length in options.lengths:
            rows.append(measured(base, Path(folder), length, options))
            print(json.dumps(rows[-1]), flush=True)
            options.output.write_text(json.dumps(found, indent=1) + "\n")


def trained(path: Path, steps: int, **more: Any) -> RunDirectory:
    """A run of six layers of a few numbers each; ``more`` as for :func:`naspipe.train`."""
    choices = [[lambda: nn.Linear(16, 16) for _ in range(3)] for _ in range(4)]
    blocks = [naspipe.Shared("stem", lambda: nn.Linear(16, 16), Lag(2))]
    blocks += [naspipe.Block(tuple(of_block)) for of_block in choices]
    blocks += [naspipe.Shared("head", lambda: nn.Linear(16, 10))]
    space = naspipe.Space("six", blocks)
    naspipe.train(
        space, vectors, nn.CrossEntropyLoss(), steps=steps, stages=STAGES, run_dir=path,
        progress=False, **more,
    )  # fmt: skip
    return RunDirectory(path)


def measured(base: RunDirectory, folder: Path, length: int, options: Any) -> dict[str, Any]:
    """One length: what its records take, and what each command costs."""
    run, other = folder / "run", folder / "other"
    lengthened(base, run, length)
    shutil.copytree(run, other)
    sizes = {
        "access": sum(path.stat().st_size for path in run.glob("access/*")),
        "losses": sum(path.stat().st_size for path in run.glob("losses.*")),
        "metrics": sum(path.stat().st_size for path in run.glob("metrics.*")),
    }
    found: dict[str, Any] = {"steps": length, "bytes_per_1000_steps": {}}
    for name, size in {**sizes, "together": sum(sizes.values())}.items():
        found["bytes_per_1000_steps"][name] = round(1000 * size / length)
    for name, words in COMMANDS.items():
        places = {"RUN": str(run), "OTHER": str(other)}
        command = [places.get(word, word) for word in words]
        found[name] = cost(command, options.limit)
    page = run / "report.html"
    found["page_mib"] = round(page.stat().st_size / MIB, 2) if page.exists() else None
    for place in (run, other):
        shutil.rmtree(place)
    return found


def cost(command: list[str], limit: float) -> dict[str, Any]:
    """Seconds and memory of one command."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    begin = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "naspipe", *command], env=environment, cwd=ROOT,
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    peak = 0
    while time.monotonic() - begin < limit:
        peak = peak_mib(process.pid) or peak
        done, status, usage = os.wait4(process.pid, os.WNOHANG)
        if done:
            if os.waitstatus_to_exitcode(status):
                raise RuntimeError(f"{command} failed")
            seconds = round(time.monotonic() - begin, 2)
            cpu = round(usage.ru_utime + usage.ru_stime, 2)
            return {"seconds": seconds, "cpu": cpu, "mib": peak}
        time.sleep(0.02)
    process.kill()
    os.wait4(process.pid, 0)
    return {"seconds": f"more than {limit:g}", "mib": peak}


def peak_mib(pid: int) -> int:
    """The most memory that a process had so far; 0 where it is over."""
    status = Path(f"/proc/{pid}/status").read_text("ascii", "replace")
    found = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")]
    return int(found[0]) // 1024 if found else 0


def lengthened(base: RunDirectory, path: Path, length: int) -> None:
    """The records of a run, so often behind one another that there are so many steps."""
    run = RunDirectory(path)
    run.create()
    manifest = base.read_manifest()
    manifest["definition"]["steps"] = length
    run.write_manifest(manifest)
    shutil.copytree(base.checkpoint(), run.checkpoint())
    lines = base.stream.read_text().splitlines(keepends=True)
    run.stream.write_text("".join(lines[number % len(lines)] for number in range(length)))
    for stage in range(STAGES):
        accesses = repeated(read_access_log(base.access_log(stage)), len(lines), length)
        with AccessLogWriter(run.access_log(stage)) as log:
            for access in accesses:
                log.append(access)
    write_losses(base, run, length)


def repeated(accesses: list[Access], steps: int, length: int) -> Iterator[Access]:
    """The accesses of a stage again and again, later each time."""
    span = max(each.end_ns for each in accesses) - min(each.start_ns for each in accesses)
    for round_ in range(-(-length // steps)):
        for each in accesses:
            number = each.sequence_id + round_ * steps
            version = each.version + round_ * steps if each.version >= 0 else each.version
            if number < length:
                yield each._replace(
                    sequence_id=SequenceId(number),
                    version=Version(version),
                    start_ns=each.start_ns + round_ * span,
                    end_ns=each.end_ns + round_ * span,
                )


def write_losses(base: RunDirectory, run: RunDirectory, length: int) -> None:
    """Losses and metrics of so many steps."""
    losses, metrics = base.read_losses(), read_metrics(base.metrics)
    span = metrics[-1]["seconds"]
    writer, file = LossWriter(run.losses), MetricsFile(run.metrics, 0)
    for number in range(length):
        loss, known = losses[number % len(losses)], dict(metrics[number % len(metrics)])
        known["seconds"] += number // len(metrics) * span
        writer.append(0, number, loss.value, loss.bits, loss.beside)
        file.write(number, {k: v for k, v in known.items() if k != "step"})
    writer.close()
    file.close()


if __name__ == "__main__":
    main()
