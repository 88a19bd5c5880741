"""Fuzzes every reader of files and messages with Atheris; writes artifacts/faults/fuzz.json.

Needs `pip install atheris`. Each target runs in a process of its own, from a seed. Anything but a
documented error ends it, and so does memory that grows by more than 256 MiB.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import resource
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

MOST_GROWTH = 256 << 10
"""KiB, as getrusage counts."""


QUICK = (
    "access records", "events", "old access records", "old events", "messages", "reports",
)  # fmt: skip
"""Targets that touch no file or only a short one: they get two and a half times the inputs."""

INSTRUMENTED = [
    "naspipe.trace", "naspipe.core", "naspipe.data.fairseq_format", "naspipe.runtime.wire.messages",
    "naspipe.runtime.wire.tensor_codec", "naspipe.streams.from_file", "naspipe.cli.streams",
]  # fmt: skip


def fuzz_here(target: Any, runs: int, seed: int, place: Path) -> None:
    """Fuzz one target in this process; never returns."""
    import atheris

    corpus, scratch = place / "corpus", place / "scratch"
    for folder in (corpus, scratch):
        folder.mkdir()
    for number, data in enumerate(target.seeds(scratch)):
        (corpus / str(number)).write_bytes(data)
        one(target, data, scratch)  # what is imported late is no growth
    start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def test(data: bytes) -> None:
        try:
            one(target, data, scratch)
        except Exception:
            (place / "crash-input").write_bytes(data)
            raise
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - start
        if grown > MOST_GROWTH:
            raise MemoryError(f"grown by {grown} KiB")

    options = [f"-runs={runs}", f"-seed={seed}", "-max_len=2048", "-timeout=60"]
    atheris.Setup([sys.argv[0], *options, f"-artifact_prefix={place}/", str(corpus)], test)
    atheris.Fuzz()


def one(target: Any, data: bytes, place: Path) -> None:
    """One input."""
    with contextlib.suppress(*target.errors):
        target.read(data, place)


def fuzz(name: str, target: Any, runs: int, seed: int) -> dict[str, Any]:
    """Fuzz one target in a process of its own; returns what was seen."""
    start = time.monotonic()
    memory = "/dev/shm"
    with tempfile.TemporaryDirectory(dir=memory if Path(memory).is_dir() else None) as folder:
        place = Path(folder)
        said = place / "said"
        if (child := os.fork()) == 0:
            os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT), 2)
            try:
                fuzz_here(target, runs, seed, place)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(70)
        _, status = os.waitpid(child, 0)
        text = said.read_text("utf-8", "replace")
        crashes = [path.read_bytes().hex() for path in place.glob("crash-*")]
    counted = re.findall(r"^#([0-9]+)", text, re.MULTILINE)
    covered = re.findall(r"cov: ([0-9]+)", text)
    row = {
        "target": name,
        "inputs": max(map(int, counted), default=0),
        "exit": os.waitstatus_to_exitcode(status),
        "covered": int(covered[-1]) if covered else 0,
        "seconds": round(time.monotonic() - start, 1),
    }
    return {**row, "crashes": crashes, "said": text[-3000:]} if status else row


def main() -> int:
    """Fuzz all targets; the exit status is 1 when one crashed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=52_000, help="inputs of a target")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--targets", nargs="*", metavar="NAME", help="all, unless named")
    parser.add_argument("--output", type=Path, default=ROOT / "artifacts/faults/fuzz.json")
    arguments = parser.parse_args()
    import atheris

    with atheris.instrument_imports(include=INSTRUMENTED):
        from tests.faults.fuzz_targets import TARGETS
    rows = []
    for name in arguments.targets or TARGETS:
        times = 2.5 if name in QUICK else 1
        rows.append(fuzz(name, TARGETS[name], int(times * arguments.runs), arguments.seed))
        print(rows[-1], flush=True)
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        total = {"inputs": sum(row["inputs"] for row in rows), "seed": arguments.seed}
        arguments.output.write_text(json.dumps({**total, "targets": rows}, indent=1) + "\n")
    return int(any(row["exit"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
