"""Fuzzes every reader of files and messages; writes artifacts/faults/fuzz.json.

With Atheris where it is installed (`pip install atheris`), which is led by what is covered. Else,
or with --plain, inputs are drawn: seeds with bits and bytes damaged, and messages with a value of
another kind somewhere in them. Each target runs in a process of its own, from a seed. Anything but
a documented error ends it, and so does memory that grows by more than 256 MiB. With --targets, the
rows of others stay as they are.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import resource
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

MOST_GROWTH = 256 << 10
"""KiB, as getrusage counts."""


QUICK = (
    "access segments", "events", "messages", "reports", "students' words", "teachers' words",
    "teachers' cards", "registries' words",
)  # fmt: skip
"""Targets that touch no file or only a short one: they get two and a half times the inputs."""

INSTRUMENTED = [
    "naspipe.store", "naspipe.config", "naspipe.engine.events", "naspipe.engine.commands",
    "naspipe.data.fairseq", "naspipe.wire.messages",
    "naspipe.wire.tensor_codec", "naspipe.streams.stream_file", "naspipe.cli.train",
    "naspipe.distill.label_messages", "naspipe.distill.label_file",
    "naspipe.distill.registry", "naspipe.distill.teacher_card", "naspipe.distill.teacher_pool",
]  # fmt: skip


def fuzz_here(target: Any, runs: int, seed: int, place: Path, is_plain: bool) -> None:
    """Fuzz one target in this process; ends it, but for drawn inputs without a crash."""
    corpus, scratch = place / "corpus", place / "scratch"
    for folder in (corpus, scratch):
        folder.mkdir()
    for number, data in enumerate(target.seeds(scratch)):
        (corpus / str(number)).write_bytes(data)
        one(target, data, scratch)  # what is imported late is no growth
    start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def test(data: bytes) -> bool:
        try:
            was_read = one(target, data, scratch)
        except Exception:
            (place / "crash-input").write_bytes(data)
            raise
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - start
        if grown > MOST_GROWTH:
            raise MemoryError(f"grown by {grown} KiB")
        return was_read

    def test_only(data: bytes) -> None:
        test(data)

    if is_plain:
        draw_inputs(target.seeds(scratch), test, runs, seed)
        return
    import atheris

    options = [f"-runs={runs}", f"-seed={seed}", "-max_len=2048", "-timeout=60"]
    atheris.Setup([sys.argv[0], *options, f"-artifact_prefix={place}/", str(corpus)], test_only)
    atheris.Fuzz()


def draw_inputs(seeds: list[bytes], test: Callable[[bytes], bool], runs: int, seed: int) -> None:
    """Damage seeds, and what came of them and could still be read, in ways that are drawn."""
    from tests.faults.fuzz_target import damaged, reshaped

    draw = random.Random(seed)
    kept, num_read = list(seeds), 0
    for number in range(1, runs + 1):
        data = draw.choice((damaged, reshaped))(draw.choice(kept), draw)[:2048]
        if test(data):
            num_read += 1
            kept[len(seeds) :] = [*kept[len(seeds) :][-31:], data]
        if number % 1000 == 0 or number == runs:
            print(f"#{number}\nread: {num_read}", file=sys.stderr, flush=True)


def one(target: Any, data: bytes, place: Path) -> bool:
    """One input; whether it could be read."""
    with contextlib.suppress(*target.errors):
        target.read(data, place)
        return True
    return False


def fuzz(name: str, target: Any, runs: int, seed: int, is_plain: bool) -> dict[str, Any]:
    """Fuzz one target in a process of its own; returns what was seen."""
    start = time.monotonic()
    memory = "/dev/shm"
    with tempfile.TemporaryDirectory(dir=memory if Path(memory).is_dir() else None) as folder:
        place = Path(folder)
        said = place / "said"
        if (child := os.fork()) == 0:
            os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT), 2)
            try:
                fuzz_here(target, runs, seed, place, is_plain)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(70)
        _, status = os.waitpid(child, 0)
        text = said.read_text("utf-8", "replace")
        crashes = [path.read_bytes().hex() for path in place.glob("crash-*")]
    counted = re.findall(r"^#([0-9]+)", text, re.MULTILINE)
    name_of_more, more = ("read", "read") if is_plain else ("covered", "cov")
    found = re.findall(rf"{more}: ([0-9]+)", text)
    row = {
        "target": name,
        "seed": seed,
        "inputs": max(map(int, counted), default=0),
        "exit": os.waitstatus_to_exitcode(status),
        name_of_more: int(found[-1]) if found else 0,
        "seconds": round(time.monotonic() - start, 1),
    }
    return {**row, "crashes": crashes, "said": text[-3000:]} if status else row


def main() -> int:
    """Fuzz all targets; the exit status is 1 when one crashed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=52_000, help="inputs of a target")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plain", action="store_true", help="draw inputs, without Atheris")
    parser.add_argument("--targets", nargs="*", metavar="NAME", help="all, unless named")
    parser.add_argument("--output", type=Path, default=ROOT / "artifacts/faults/fuzz.json")
    arguments = parser.parse_args()
    is_plain = arguments.plain or find_spec("atheris") is None
    targets = imported(is_plain)
    rows: dict[str, dict[str, Any]] = {}
    if arguments.targets and arguments.output.exists():
        old = json.loads(arguments.output.read_text())
        rows = {row["target"]: {"seed": old["seed"], **row} for row in old["targets"]}
    for name in arguments.targets or targets:
        times = 2.5 if name in QUICK else 1
        row = fuzz(name, targets[name], int(times * arguments.runs), arguments.seed, is_plain)
        print(row, flush=True)
        rows[name] = row
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        total = {"inputs": sum(row["inputs"] for row in rows.values()), "seed": arguments.seed}
        found = {**total, "targets": list(rows.values())}
        arguments.output.write_text(json.dumps(found, indent=1) + "\n")
    return int(any(row["exit"] for row in rows.values()))


def imported(is_plain: bool) -> dict[str, Any]:
    """All targets; for Atheris their modules are instrumented."""
    if is_plain:
        from tests.faults.fuzz_targets import TARGETS

        return dict(TARGETS)
    import atheris

    with atheris.instrument_imports(include=INSTRUMENTED):
        from tests.faults.fuzz_targets import TARGETS
    return dict(TARGETS)


if __name__ == "__main__":
    sys.exit(main())
