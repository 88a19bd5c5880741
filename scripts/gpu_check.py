"""Check naspipe on one GPU: tests, bits, speed of swapping, copies. Writes artifacts/gpu/*.json.

Each part runs in a process of its own with a time limit and writes its results as it goes, so
what was finished stays when something is cut off. Needs no network and no data set. Exit
status: 0 all parts done and right; 1 something failed or differs; 2 bad options or a package
that is missing; 3 skipped, since there is no GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from scripts.gpu.carried import environment, make_wheels  # noqa: E402
from scripts.gpu.findings import watched, write  # noqa: E402
from scripts.gpu.parts import PARTS, epilog  # noqa: E402


def main() -> int:
    """Find what is needed, run the parts, say how they went."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the part ends, too
    arguments = _arguments()
    if arguments.make_wheels:
        return make_wheels(arguments.make_wheels, arguments.wheels, ROOT / "constraints.txt")
    with tempfile.TemporaryDirectory(prefix="naspipe-gpu-check-", dir=_best_place()) as scratch:
        found = environment(ROOT, arguments.wheels, Path(scratch))
        if found is None:
            return 2
        arguments.output.mkdir(parents=True, exist_ok=True)
        machine = _machine(arguments.device, found)
        if arguments.device == "cuda" and not machine["gpus"]:
            print("gpu_check: skipped: torch finds no CUDA device on this machine")
            return 3
        write(arguments.output / "machine.json", machine)
        print(f"gpu_check: {machine}", flush=True)
        verdicts = [_run(part, arguments, found) for part in arguments.parts]
    return int(not all(verdicts))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=epilog(), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument(
        "--dry-run", action="store_true",
        help="toy sizes; needed for --device cpu, where memory budgets take the emulated device",
    )  # fmt: skip
    parser.add_argument(
        "--parts", nargs="+", choices=PARTS, default=[*PARTS], metavar="PART",
        help="only these, see below; all by default",
    )  # fmt: skip
    parser.add_argument("--output", type=Path, default=ROOT / "artifacts/gpu")
    parser.add_argument(
        "--wheels", type=Path, default=ROOT / "wheels",
        help="where wheels of missing packages are; of all but torch and numpy",
    )  # fmt: skip
    parser.add_argument(
        "--make-wheels", metavar="VERSION", help="fetch them for this version of Python, and end"
    )
    parser.add_argument("--factor", type=float, default=1.0, help="stretch every time limit")
    arguments = parser.parse_args()
    if arguments.device == "cpu" and not arguments.dry_run:
        parser.error("--device cpu: expected --dry-run with it (the emulated device, toy sizes)")
    if not arguments.factor > 0:
        parser.error(f"--factor: expected a number above 0, found {arguments.factor:g}")
    return arguments


def _best_place() -> str | None:
    """Where runs are kept for a moment: in memory where there is plenty, else on the disk."""
    shared = Path("/dev/shm")
    is_roomy = shared.is_dir() and shutil.disk_usage(shared).free > 16 << 30
    return str(shared) if is_roomy else None


def _machine(device: str, env: dict[str, str]) -> dict[str, Any]:
    """What the figures were measured on."""
    ask = (
        "import json, platform, torch;"
        "from naspipe.machine.gpus import find_gpus; g = find_gpus();"
        "print(json.dumps({'gpus': g.names, 'gpu_memory_bytes': g.memory_bytes, 'driver': g.driver,"
        "'cuda': g.cuda, 'cudnn': g.cudnn, 'torch': torch.__version__,"
        "'python': platform.python_version()}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", ask], env=env, cwd=ROOT, text=True, check=True,
        stdout=subprocess.PIPE,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout)
    return {**found, "device": device, "cores": os.cpu_count()}


def _run(part: str, arguments: argparse.Namespace, env: dict[str, str]) -> bool:
    """One part; whether it ended in time and found nothing wrong."""
    seconds = PARTS[part].seconds * arguments.factor
    output = (arguments.output / f"{part}.json").resolve()
    command = [
        sys.executable, "-m", "scripts.gpu.part", part, "--device", arguments.device,
        "--output", str(output), "--seconds", str(seconds),
        *(["--toy"] if arguments.dry_run else []),
    ]  # fmt: skip
    record = watched(command, output, seconds, ROOT, env)
    record["is_dry_run"] = arguments.dry_run
    write(output, record)
    verdict = "good" if record["is_good"] else "NOT GOOD"
    ending = ", cut off" if record["was_cut_off"] else ""
    print(f"gpu_check: {part}: {verdict}{ending}, {record['took_seconds']:.0f} s: "
          f"{json.dumps(record.get('summary'))}", flush=True)  # fmt: skip
    return bool(record["is_good"])


if __name__ == "__main__":
    sys.exit(main())
