"""Memory, threads and open files of every process of a long run: they must not grow.

The stream touches every layer first, as `fair` does in its first round, because layers are
made when they are first used; after that it is uniform. The warm-up is that round and as
many uniform subnets again, of which more are under way at a time. The processes take the
allocator that LD_PRELOAD names; which one they had is part of the result. Writes
artifacts/memory/long_run.json and a drawing beside it.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from naspipe.machine.determinism import describe_environment  # noqa: E402
from naspipe.store.files import write_json  # noqa: E402
from naspipe.store.run_directory import RunDirectory  # noqa: E402
from naspipe.streams.samplers import draw_stream  # noqa: E402
from naspipe.streams.stream_file import write_stream  # noqa: E402
from scripts.processes import Taken, allocator, children, taken  # noqa: E402
from scripts.tiny_workload import tiny_workload  # noqa: E402

ALLOWED_GROWTH = 0.02
"""Of the resident memory, from the end of the warm-up to the end of the run."""

MIB = 2**20

SILENCE_SECONDS = 600
"""A busy machine may keep a stage waiting; this run is not about time."""


def touching_stream(name: str, steps: int) -> list[tuple[int, ...]]:
    """Subnets that touch every layer of a space, then uniform ones."""
    counts = tiny_workload(name).space.candidate_counts
    first = draw_stream("fair", counts, 0, min(steps, max(counts)))
    return [*first, *draw_stream("uniform", counts, 0, steps - len(first))]


class Watch:
    """Samples the processes of a run until its stages have ended."""

    def __init__(self, process: subprocess.Popen[Any], losses: Path) -> None:
        self._process, self._losses = process, losses
        self.samples: dict[str, list[tuple[float, int, Taken]]] = {}
        self.allocators: dict[str, str | None] = {}

    def run(self, num_stages: int, every_seconds: float) -> None:
        """Take samples; the launcher reads its logs again after the stages, which is left out."""
        while self._process.poll() is None and self._steps() == 0:
            time.sleep(0.1)
        start = time.monotonic()
        stages = children(self._process.pid)
        names = (
            {self._process.pid: "launcher"} if num_stages > 1 else {self._process.pid: "stage 0"}
        )
        names |= {pid: f"stage {number}" for number, pid in enumerate(stages)}
        self.allocators = {name: allocator(pid) for pid, name in names.items()}
        while self._process.poll() is None:
            found = {name: taken(pid) for pid, name in names.items()}
            if any(each is None for each in found.values()):
                break
            for name, each in found.items():
                row = (time.monotonic() - start, self._steps(), each)
                self.samples.setdefault(name, []).append(row)
            time.sleep(every_seconds)

    def _steps(self) -> int:
        return self._losses.read_bytes().count(b"\n") if self._losses.exists() else 0


def judge(samples: Sequence[tuple[float, int, Taken]], warm_up: int, steps: int) -> dict[str, Any]:
    """Growth after the warm-up: medians of the first and the last fifth of what is left.

    Behind the last step the layers are being written, which is left out.
    """
    warm = [(step, each) for _, step, each in samples if warm_up <= step < steps]
    part = max(1, len(warm) // 5)
    before, after = (
        {key: statistics.median(getattr(each, key) for _, each in rows) for key in Taken._fields}
        for rows in (warm[:part], warm[-part:])
    )
    steps = statistics.mean(step for step, _ in warm[-part:]) - statistics.mean(
        step for step, _ in warm[:part]
    )
    growth = after["rss_bytes"] - before["rss_bytes"]
    counts = {
        key: sorted({getattr(each, key) for _, each in warm}) for key in ("threads", "descriptors")
    }
    return {
        "rss_bytes_after_warm_up": before["rss_bytes"],
        "rss_bytes_at_the_end": after["rss_bytes"],
        "pss_growth_bytes": after["pss_bytes"] - before["pss_bytes"],
        "rss_growth_bytes": growth,
        "rss_growth_bytes_per_1000_subnets": growth / steps * 1000 if steps else 0.0,
        **counts,
        "is_flat": growth <= ALLOWED_GROWTH * before["rss_bytes"]
        and all(len(values) == 1 for values in counts.values()),
    }


def draw(result: dict[str, Any], path: Path) -> None:
    """Resident memory of every process over the subnets."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for name, rows in result["samples"].items():
        axes.plot([row[1] for row in rows], [row[2] / MIB for row in rows], label=name)
    axes.axvline(result["warm_up"], color="0.6", linestyle=":", label="warm-up")
    axes.set(xlabel="subnets", ylabel="resident memory, MiB", ylim=(0, None))
    axes.set_title(f"{result['space']} tiny, {result['stages']} stages, {result['budget']}")
    axes.legend(frameon=False, loc="lower right")
    figure.savefig(path, dpi=120)


def measure(arguments: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """Train in a process of its own, watched."""
    stream = touching_stream(arguments.space, arguments.steps)
    write_stream(scratch / "stream.jsonl", stream)
    directory = RunDirectory(scratch / "run")
    command = [
        sys.executable, "-m", "naspipe", "train", arguments.space, "--quiet",
        "--sampler", f"file:{scratch / 'stream.jsonl'}", "--steps", str(arguments.steps),
        "--stages", str(arguments.stages), "--run-dir", str(directory.path), "--partition",
        arguments.partition, "--set", f"silence_seconds={SILENCE_SECONDS}",
        *(["--recompute"] if arguments.recompute else []),
        *(["--memory-budget", arguments.budget] if arguments.budget else []),
    ]  # fmt: skip
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as process:
        watch = Watch(process, directory.losses)
        try:
            watch.run(arguments.stages, arguments.every)
        except BaseException:
            process.terminate()
            raise
    if process.returncode:
        sys.exit(process.returncode)
    manifest = directory.read_manifest()
    num_touching, window = max(map(max, stream)) + 1, manifest["execution"]["window"]
    warm_up = min(arguments.steps // 2, 2 * num_touching + window)
    measured = manifest["measured"]
    return {
        "space": arguments.space, "steps": arguments.steps, "stages": arguments.stages,
        "budget": arguments.budget, "partition": arguments.partition,
        "recompute": arguments.recompute, "warm_up": warm_up,
        "environment": describe_environment(),
        "steps_per_second": measured["steps_per_second"], "hit_rate": measured["hit_rate"],
        "host_bytes": [stage.get("host_bytes") for stage in measured["stages"]],
        "processes": {
            name: {"allocator": watch.allocators[name], **judge(rows, warm_up, arguments.steps)}
            for name, rows in watch.samples.items()
        },
        "columns": ["seconds", "subnets", *Taken._fields],
        "samples": {
            name: [[round(seconds, 2), step, *each] for seconds, step, each in rows]
            for name, rows in watch.samples.items()
        },
    }  # fmt: skip


def main() -> int:
    """Measure, print, write; the exit status is 1 when something grows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--space", default="nlp.c1")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--budget", default="2x", help="as --memory-budget; empty for none")
    parser.add_argument("--partition", default="balanced")
    parser.add_argument("--recompute", action="store_true")
    parser.add_argument("--every", type=float, default=0.5, help="seconds between samples")
    parser.add_argument("--output", type=Path, default=ROOT / "artifacts/memory/long_run.json")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # leaves no temporary directory
    with tempfile.TemporaryDirectory(prefix="npl") as scratch:
        result = measure(arguments, Path(scratch))
    for name, found in result["processes"].items():
        print(name, json.dumps(found, indent=1))
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    write_json(arguments.output, result)
    try:
        draw(result, arguments.output.with_suffix(".png"))
    except ModuleNotFoundError:
        print("no drawing: matplotlib is not installed (pip install -e '.[bench]')")
    return int(not all(found["is_flat"] for found in result["processes"].values()))


if __name__ == "__main__":
    sys.exit(main())
