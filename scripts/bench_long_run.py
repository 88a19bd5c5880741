"""What the processes of a really long run take while it goes; artifacts/records/long_run.json.

Six layers of a few numbers each are trained on two stages (the space of bench_records.py) in a
process of its own. Every second the resident memory of the launcher and of each stage is read, and
the step from the run's heartbeat. Growth is from the second tenth of the steps to the last one, by
medians. Then its records are weighed, and `log`, `log --layer`, `compare` (with itself, copied) and
`report` are run on them.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from naspipe.machine.determinism import describe_environment  # noqa: E402
from naspipe.store.run_directory import (  # noqa: E402
    RunDirectory,
    read_heartbeat,
)
from scripts.bench_records import COMMANDS, MIB, cost, trained  # noqa: E402
from scripts.processes import children, taken  # noqa: E402

Samples = dict[str, list[tuple[int, int]]]
"""By process: step and resident bytes."""


def main() -> None:
    """Train, watch, read; print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--train", type=Path, metavar="DIR", help="only train; used by the script")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="where the run is left")
    parser.add_argument("--read", type=Path, metavar="DIR", help="a run that was kept: only read")
    parser.add_argument("--output", type=Path, default=ROOT / "artifacts/records/long_run.json")
    options = parser.parse_args()
    if options.train:
        trained(
            options.train, options.steps, execution={"timeout_seconds": 600, "silence_seconds": 600}
        )
        return
    found: dict[str, Any] = json.loads(options.output.read_text()) if options.read else {}
    with tempfile.TemporaryDirectory() as folder:
        run = RunDirectory(options.read or options.keep or Path(folder) / "run")
        if not options.read:
            found |= {"environment": describe_environment(), **watched(run, options.steps)}
            print(json.dumps(found["processes"], indent=1), flush=True)
            options.output.write_text(json.dumps(found, indent=1) + "\n")
        steps = found.get("steps", options.steps)
        found |= weighed(run, steps) | read(run, Path(folder))
    options.output.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps({key: found[key] for key in ("bytes_per_1000_steps", *COMMANDS)}, indent=1))


def watched(run: RunDirectory, steps: int) -> dict[str, Any]:
    """The run, and what each of its processes took; behind the last step nothing is sampled."""
    command = [sys.executable, __file__, "--train", str(run.path), "--steps", str(steps)]
    samples: Samples = {}
    begin = time.monotonic()
    with subprocess.Popen(command, cwd=ROOT, start_new_session=True) as process:
        while process.poll() is None:
            try:
                time.sleep(1)
            except KeyboardInterrupt:  # what was seen until now
                process.send_signal(signal.SIGINT)
                process.wait()
                steps = max(step for step, _ in samples["launcher"]) + 1
                break
            beat = read_heartbeat(run.path)
            step = int(beat["step"]) if beat else 0
            if 0 < step < steps:
                named = {process.pid: "launcher"}
                named |= {pid: f"stage {n}" for n, pid in enumerate(children(process.pid))}
                for pid, name in named.items():
                    if (found := taken(pid)) is not None:
                        samples.setdefault(name, []).append((step, found.rss_bytes))
        if process.returncode not in (0, 130):
            raise SystemExit(process.returncode)
    seconds = round(time.monotonic() - begin)
    processes = {name: judged(rows, steps) for name, rows in samples.items()}
    return {"steps": steps, "seconds": seconds, "processes": processes}


def judged(rows: list[tuple[int, int]], steps: int) -> dict[str, Any]:
    """Resident MiB in the second, the sixth and the last tenth of the steps."""
    found = {}
    for name, tenth in {"second tenth": 1, "sixth tenth": 5, "last tenth": 9}.items():
        own = [rss for step, rss in rows if step * 10 // steps == tenth]
        found[name] = round(statistics.median(own) / MIB, 2) if own else None
    return {**found, "samples": len(rows)}


def weighed(run: RunDirectory, steps: int) -> dict[str, Any]:
    """Bytes of its records for each 1,000 steps."""
    names = {"access": "access/*", "losses": "losses.*", "metrics": "metrics.*"}
    sizes = {
        name: sum(path.stat().st_size for path in run.path.glob(pattern))
        for name, pattern in names.items()
    }
    sizes["together"] = sum(sizes.values())
    return {"bytes_per_1000_steps": {name: round(n * 1000 / steps) for name, n in sizes.items()}}


def read(run: RunDirectory, folder: Path) -> dict[str, Any]:
    """Seconds and peak memory of each command."""
    other = folder / "other"
    shutil.copytree(run.path, other)
    places = {"RUN": str(run.path), "OTHER": str(other)}
    return {
        name: cost([places.get(word, word) for word in words], 900)
        for name, words in COMMANDS.items()
    }


if __name__ == "__main__":
    main()
