"""Labels from elsewhere on real processes, in alternation; writes artifacts/elastic/real.json.

========= ==========================================================================================
``law``    teachers that answer no sooner than 4.8 steps take: rate against min(1, n t_t / t_s)
``label``  a step whose labels are read from a file, over a step of the same student without any
           label: its loss has the same terms, against scores that it holds itself
``apart``  one student and one teacher process over ``inline``, where a label costs what a step does
``memory`` resident memory of the student and of its teacher, early and late in a long run
``bytes``  of requests, as they were sent
========= ==========================================================================================

For the figures of a claim leave the options as they are, on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from torch import nn

import naspipe as npp
from naspipe.distill import label_messages
from naspipe.inputs.named import find_workload
from naspipe.jobs.workload import Workload
from naspipe.machine.determinism import describe_environment
from naspipe.store.access_log import read_run_accesses
from naspipe.store.metrics import warm_up_end_ns
from naspipe.store.teacher_events import read_teacher_events
from scripts.bench.common import ROOT, Spread
from scripts.processes import children, taken

RATIO = 4.8
"""Steps of the student in the time of one label: one V100 and P4s as teachers (EDL-Dist, 4.3)."""

TOLERANCE = 0.10
MOST_LABEL_COST, LEAST_GAIN, MOST_BYTES, MOST_GROWTH = 1.03, 1.5, 200, 0.02


def expected(teachers: int) -> float:
    """Of the student's rate."""
    return min(1.0, teachers / RATIO)


def judged(found: dict[str, Any]) -> list[tuple[str, str, str, bool]]:
    """By figure: what it is, what was found, what is wanted, and whether it holds."""
    rows: list[tuple[str, str, str, bool]] = []
    for count, shares in found.get("law", {}).items():
        wanted, spread = expected(int(count)), Spread.of(shares)
        holds = abs(spread.median / wanted - 1.0) <= TOLERANCE
        rows.append((f"{count} teachers", str(spread), f"{wanted:.3f}, within 10 %", holds))
    for way, ratios in found.get("label", {}).items():
        spread, limit = Spread.of(ratios), f"<= {MOST_LABEL_COST}" if way == "file" else ""
        holds = way != "file" or spread.median <= MOST_LABEL_COST
        rows.append((f"step with labels ({way}) over one without", str(spread), limit, holds))
    if part := found.get("apart"):
        spread, cost = Spread.of(part["gain"]), Spread.of(part["label_over_step"])
        what = f"student and teacher over inline (a label costs {cost.median:.2f} steps)"
        rows.append((what, str(spread), f">= {LEAST_GAIN}", spread.median >= LEAST_GAIN))
    for who, (early, late) in found.get("memory", {}).get("rss_bytes", {}).items():
        growth, at = late / early - 1.0, found["memory"]["steps"]
        said = f"{early / 2**20:.1f}, {late / 2**20:.1f} MiB"
        what = f"memory of the {who} at steps {at[0]} and {at[1]}"
        rows.append((what, said, f"growth <= {MOST_GROWTH:.0%}", growth <= MOST_GROWTH))
    if part := found.get("bytes"):
        most = max(part["most"], part["greatest"])
        said = f"{part['most']} of {part['requests']}, at most {part['greatest']}"
        rows.append(("bytes of a request", said, f"<= {MOST_BYTES}", most <= MOST_BYTES))
    return rows


TEACHERS = (1, 2, 3, 5)
SEED = 1
CONVOLUTION = 16
"""Channels of the teacher that is as dear as a step."""


class HeldScores:
    """SoftTarget's loss with scores that it has: the same work, and no label."""

    def __init__(self, scores: torch.Tensor) -> None:
        self._scores, self._soft = scores, npp.losses.SoftTarget()

    def __call__(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Of an output, against the scores that are held."""
        return self._soft.distill(output, self._scores[: len(output)], target)


def timed(run: npp.Run) -> float:
    """Steps per second behind the warm-up, and behind the moment when all teachers are there."""
    accesses = read_run_accesses(run.directory.path)
    events = read_teacher_events(run.directory.path)
    joined = [each["time_ns"] for each in events if each["event"] == "joined"]
    start = max([warm_up_end_ns(accesses) or 0, *joined])
    ends: dict[int, int] = {}
    for access in accesses:
        ends[access.sequence_id] = max(ends.get(access.sequence_id, 0), access.end_ns)
    after = sorted(end for end in ends.values() if end >= start)
    return (len(after) - 1) / ((after[-1] - after[0]) / 1e9)


@dataclass(frozen=True)
class Bench:
    """What all parts have in common."""

    student: Workload
    pairs: int
    seconds: float
    """That a run takes, about."""
    place: Path
    say: Callable[[str], None]

    def train(self, teacher: npp.Teacher | None, steps: int, **how: Any) -> float:
        """Steps per second of one run of the student."""
        made, loss = self.student, how.pop("loss", npp.losses.SoftTarget())
        with tempfile.TemporaryDirectory(dir=self.place) as scratch:
            run = npp.train(
                made.space, made.data, loss, steps=steps, seed=SEED, lr=0.01, teacher=teacher,
                run_dir=Path(scratch) / "run", execution=how,
            )  # fmt: skip
            return timed(run)

    def labels(self, teacher: npp.Teacher, batches: int) -> str:
        """A file of labels."""
        path = self.place / f"labels-{len(list(self.place.iterdir()))}"
        npp.write_labels(teacher, self.student.data, path, batches=batches, seed=SEED)
        return f"file:{path}"

    def steps(self, speed: float) -> int:
        """That take as long as a run should."""
        return max(24, round(speed * self.seconds))


def light() -> npp.Teacher:
    """A teacher whose label costs next to nothing."""
    torch.manual_seed(5)
    return npp.Teacher([nn.Sequential(nn.Flatten(), nn.Linear(784, 10))])


def law(bench: Bench) -> dict[str, Any]:
    """What so many paced teachers leave of the rate with labels at hand."""
    teacher = light()
    alone = bench.train(teacher, 60, labels=bench.labels(teacher, 60))
    most = bench.steps(1.5 * alone)
    labels = bench.labels(teacher, most)
    found: dict[int, list[float]] = {count: [] for count in TEACHERS}
    for pair in range(bench.pairs):
        alone = bench.train(teacher, min(most, bench.steps(alone)), labels=labels)
        for count in sorted(TEACHERS, reverse=bool(pair % 2)):
            steps = min(most, bench.steps(alone * expected(count)))
            how = {"labels": "service", "teachers": count, "label_audit": 0}
            speed = bench.train(teacher, steps, **how, teacher_pace=RATIO / alone)
            found[count].append(speed / alone)
            bench.say(f"law: {count} teachers: {speed:.2f} of {alone:.2f} steps/s")
    return {str(count): shares for count, shares in found.items()}


def label(bench: Bench) -> dict[str, Any]:
    """Times of a step: with labels of a file, and of teachers that are ahead, over none."""
    teacher = light()
    scores = torch.randn(len(bench.student.data(SEED, 0)["input"]), 10)
    speed = bench.train(None, 60, loss=HeldScores(scores))
    steps = bench.steps(speed)
    ways: dict[str, Callable[[], Any]] = {
        "none": lambda: bench.train(None, steps, loss=HeldScores(scores)),
        "file": lambda: bench.train(teacher, steps, labels=labels),
        "service": lambda: bench.train(teacher, steps, labels="service", teachers=1, label_audit=0),
    }
    labels = bench.labels(teacher, steps)
    found: dict[str, list[float]] = {"file": [], "service": []}
    for pair in range(bench.pairs):
        speeds = {way: ways[way]() for way in sorted(ways, reverse=bool(pair % 2))}
        for way in found:
            found[way].append(speeds["none"] / speeds[way])
        bench.say(f"label: {', '.join(f'{way} {each:.2f}' for way, each in speeds.items())}")
    return found


def deep(layers: int) -> npp.Teacher:
    """A teacher of so many equal convolutions."""
    torch.manual_seed(5)
    convolutions = [nn.Conv2d(CONVOLUTION, CONVOLUTION, 3, padding=1) for _ in range(layers)]
    first = nn.Conv2d(1, CONVOLUTION, 3, padding=1)
    last = nn.Sequential(nn.Flatten(), nn.Linear(CONVOLUTION * 784, 10))
    return npp.Teacher([first, *convolutions, last])


def apart(bench: Bench) -> dict[str, Any]:
    """One student and one teacher over both in one process; and what a label costs over a step."""
    layers = as_dear_as_a_step(bench)
    teacher = deep(layers)
    alone = bench.train(teacher, 60, labels=bench.labels(teacher, 60))
    steps = bench.steps(alone / 2)
    labels = bench.labels(teacher, steps)
    gains, costs = [], []
    for pair in range(bench.pairs):
        served = {"labels": "service", "teachers": 1, "label_audit": 0}  # by whom else?
        hows: list[dict[str, Any]] = [{"labels": labels}, {"labels": "inline"}, served]
        order = reversed(hows) if pair % 2 else hows
        speeds = {how["labels"]: bench.train(teacher, steps, **how) for how in order}
        gains.append(speeds["service"] / speeds["inline"])
        costs.append(speeds[labels] / speeds["inline"] - 1.0)
        bench.say(f"apart: {gains[-1]:.2f}x, a label costs {costs[-1]:.2f} steps")
    return {"gain": gains, "label_over_step": costs, "layers": layers}


def as_dear_as_a_step(bench: Bench) -> int:
    """Convolutions of a teacher whose label costs a step of the student with labels at hand."""
    layers, steps = 12, 192
    for _ in range(3):
        teacher = deep(layers)
        alone = bench.train(teacher, steps, labels=bench.labels(teacher, steps))
        both = bench.train(teacher, steps, labels="inline")
        layers = max(1, round((layers + 1) / (alone / both - 1.0)) - 1)
    return layers


def memory(bench: Bench, steps: int) -> dict[str, Any]:
    """Bytes of the student and of its teacher, after a quarter of a run and at its end."""
    with tempfile.TemporaryDirectory(dir=bench.place) as scratch:
        return resident(Path(scratch), (steps // 4, steps))


def bytes_sent(bench: Bench) -> dict[str, Any]:
    """Bytes of every request of a run, and of one whose number is the greatest that may be."""
    path, frames = bench.place / "sent", label_messages.student_frames

    def counted(message: Any) -> list[Any]:
        found = frames(message)
        if isinstance(message, label_messages.LabelRequest):
            with path.open("a") as file:
                file.write(f"{sum(map(len, found))}\n")
        return found

    label_messages.student_frames = counted
    try:
        bench.train(light(), 48, labels="service", teachers=2)
    finally:
        label_messages.student_frames = frames
    sent = [int(line) for line in path.read_text().split()]
    greatest = label_messages.LabelRequest((1 << 62) - 1)
    return {"requests": len(sent), "most": max(sent), "greatest": len(frames(greatest)[0])}


_ENOUGH = 1.2
"""Steps that are trained, over those that are looked at: at the last ones layers are written."""


def resident(place: Path, moments: Sequence[int]) -> dict[str, Any]:
    """Bytes of both processes when so many steps are done, of a student on one stage.

    Raises:
        RuntimeError: when the run ends before that.
    """
    teacher, run = place / "teacher", place / "run"
    cnn = ["train", "cnn", "--quiet", "--seed", "1", "--set", "data.batch_size=8"]
    _naspipe([*cnn, "--steps", "1", "--run-dir", str(teacher)]).wait()
    steps = str(round(moments[-1] * _ENOUGH))
    labels = ["--teacher", str(teacher), "--labels", "service", "--teachers", "1"]
    process = _naspipe([*cnn, "--steps", steps, "--run-dir", str(run), *labels])
    found: dict[str, list[int]] = {"student": [], "teacher": []}
    try:
        for moment in moments:
            while _steps(run) < moment:
                if process.poll() is not None:
                    raise RuntimeError(f"expected a run of {steps} steps, found {_steps(run)}")
                time.sleep(0.05)
            for who, pid in (("student", process.pid), ("teacher", _teacher(process.pid))):
                now = taken(pid)
                if now is None:
                    raise RuntimeError(f"expected a {who} at step {moment}, found none")
                found[who].append(now.rss_bytes)
    finally:
        process.terminate()
        process.wait()
    return {"steps": list(moments), "rss_bytes": found}


def _naspipe(words: Sequence[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "naspipe", *words])


def _steps(run: Path) -> int:
    losses = run / "losses.jsonl"
    return losses.read_bytes().count(b"\n") if losses.exists() else 0


def _teacher(pid: int) -> int:
    """The only grandchild of a run on one stage: the pool's."""
    (found,) = [teacher for pool in children(pid) for teacher in children(pool)]
    return found


PARTS = ("law", "label", "apart", "memory", "bytes")


def main(words: Sequence[str] | None = None) -> int:
    """Measure, print and write; the exit status is 1 where a figure is not as wanted."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=20.0, help="that a run takes, about")
    parser.add_argument("--memory-steps", type=int, default=2000)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument(
        "--only", nargs="+", choices=PARTS, default=list(PARTS), help="the others stay in the file"
    )
    parser.add_argument("--output", type=Path, default=ROOT / "artifacts/elastic/real.json")
    arguments = parser.parse_args(words)
    console = Console(highlight=False)
    student = find_workload("cnn", "tiny", None, None, {"batch_size": arguments.batch_size})
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        bench = Bench(
            student,
            arguments.pairs,
            arguments.seconds,
            Path(scratch),
            lambda text: said(console, text),
        )
        parts: dict[str, Callable[[], Any]] = {
            "law": lambda: law(bench), "label": lambda: label(bench), "apart": lambda: apart(bench),
            "memory": lambda: memory(bench, arguments.memory_steps),
            "bytes": lambda: bytes_sent(bench),
        }  # fmt: skip
        if arguments.output.exists():
            known = json.loads(arguments.output.read_text())
            found = {name: known[name] for name in PARTS if name in known}
        for name in arguments.only:
            found[name] = parts[name]()
    rows = judged(found)
    table = Table("figure", "median (least to most)", "wanted", "holds", box=SIMPLE_HEAD)
    for what, spread, wanted, holds in rows:
        table.add_row(what, spread, wanted, "yes" if holds else "NO")
    console.print(table)
    result = {
        "environment": describe_environment(), "pairs": arguments.pairs,
        "seconds": arguments.seconds, "batch_size": arguments.batch_size, **found,
    }  # fmt: skip
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(result, indent=1) + "\n")
    return int(not all(holds for *_, holds in rows))


def said(console: Console, text: str) -> None:
    """With the time of day, for whoever waits."""
    console.print(f"{time.strftime('%H:%M:%S')} {text}")
