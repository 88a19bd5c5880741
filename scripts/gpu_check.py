"""Check naspipe on one GPU: tests, bits, speed of swapping, copies. Writes artifacts/gpu/*.json.

Each part runs in a process of its own with a time limit and writes its results as it goes, so
what was finished stays when something is cut off. Needs no network and no data set. Exit
status: 0 all parts done and right; 1 something failed or differs; 2 bad options or a package
that is missing; 3 skipped, since there is no GPU.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PARTS = {"tests": 170, "bits": 120, "copies": 25, "paper": 120, "swap": 80}
"""Seconds of each, at most; together below 9 minutes."""

NEEDED = {
    "torch": "torch", "numpy": "numpy", "msgpack": "msgpack", "zmq": "pyzmq",
    "safetensors": "safetensors", "rich": "rich", "pytest": "pytest",
    "pytest_timeout": "pytest-timeout", "hypothesis": "hypothesis",
}  # fmt: skip
"""Packages by the name they are imported by; only torch and numpy cannot come from wheels/."""


def main() -> int:
    """Find what is needed, run the parts, say how they went."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--dry-run", action="store_true", help="toy sizes; needed for --device cpu")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=[*PARTS])
    parser.add_argument("--output", type=Path, default=ROOT / "artifacts/gpu")
    parser.add_argument("--wheels", type=Path, default=ROOT / "wheels")
    parser.add_argument("--factor", type=float, default=1.0, help="stretch every time limit")
    arguments = parser.parse_args()
    if arguments.device == "cpu" and not arguments.dry_run:
        parser.error("--device cpu: expected --dry-run with it (the emulated device, toy sizes)")
    with tempfile.TemporaryDirectory(prefix="naspipe-gpu-check-", dir=_best_place()) as scratch:
        environment = _environment(arguments.wheels, Path(scratch))
        if environment is None:
            return 2
        arguments.output.mkdir(parents=True, exist_ok=True)
        machine = _machine(arguments.device, environment)
        if arguments.device == "cuda" and not machine["gpus"]:
            print("gpu_check: skipped: torch finds no CUDA device on this machine")
            return 3
        _write(arguments.output / "machine.json", machine)
        print(f"gpu_check: {machine}", flush=True)
        verdicts = [_run(part, arguments, environment) for part in arguments.parts]
    return int(not all(verdicts))


def _best_place() -> str | None:
    """Where runs are kept for a moment: in memory where there is plenty, else on the disk."""
    shared = Path("/dev/shm")
    is_roomy = shared.is_dir() and shutil.disk_usage(shared).free > 16 << 30
    return str(shared) if is_roomy else None


def _environment(wheels: Path, scratch: Path) -> dict[str, str] | None:
    """The parts' environment; None when packages are missing that no wheel brings.

    What they leave, when one is cut off too, is below ``scratch``.
    """
    site = scratch / "site"
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "TMPDIR": str(scratch),
        "XDG_CACHE_HOME": str(scratch / "cache"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    missing = [name for module, name in NEEDED.items() if importlib.util.find_spec(module) is None]
    if not missing:
        return environment
    print(f"gpu_check: this python lacks {', '.join(missing)}; looking in {wheels}/", flush=True)
    command = [
        sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps",
        "--find-links", str(wheels), "--target", str(site), *missing,
    ]  # fmt: skip
    if subprocess.call(command):
        print(f"gpu_check: expected wheels of {', '.join(missing)} in {wheels}/, found none that "
              f"fit; put them there or use a python that has them", file=sys.stderr)  # fmt: skip
        return None
    environment["PYTHONPATH"] = f"{site}{os.pathsep}{environment['PYTHONPATH']}"
    return environment


def _machine(device: str, environment: dict[str, str]) -> dict[str, Any]:
    """What the figures were measured on."""
    ask = (
        "import json, platform, torch;"
        "from naspipe.runtime.devices.gpus import find_gpus; g = find_gpus();"
        "print(json.dumps({'gpus': g.names, 'gpu_memory_bytes': g.memory_bytes, 'driver': g.driver,"
        "'cuda': g.cuda, 'cudnn': g.cudnn, 'torch': torch.__version__,"
        "'python': platform.python_version()}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", ask], env=environment, cwd=ROOT, text=True, check=True,
        stdout=subprocess.PIPE,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout)
    return {**found, "device": device, "cores": os.cpu_count()}


def _run(part: str, arguments: argparse.Namespace, environment: dict[str, str]) -> bool:
    """One part; whether it ended in time and found nothing wrong."""
    seconds = PARTS[part] * arguments.factor
    output = (arguments.output / f"{part}.json").resolve()
    output.unlink(missing_ok=True)
    command = [
        sys.executable, "-m", "scripts.gpu_parts", part, "--device", arguments.device,
        "--output", str(output), "--seconds", str(seconds),
        *(["--toy"] if arguments.dry_run else []),
    ]  # fmt: skip
    start = time.monotonic()
    # A session of its own, so that a part that is cut off leaves none of its stages behind.
    process = subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True)
    try:
        status = process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        status = None
        os.killpg(process.pid, 9)
        process.wait()
    record = json.loads(output.read_text()) if output.exists() else {}
    took = time.monotonic() - start
    ending = {"exit_status": status, "was_cut_off": status is None, "took_seconds": round(took, 1)}
    _write(output, {**record, **ending, "is_dry_run": arguments.dry_run})
    is_good = status == 0 and record.get("is_good", False)
    print(f"gpu_check: {part}: {'good' if is_good else 'NOT GOOD'}, {took:.0f} s: "
          f"{json.dumps(record.get('summary'))}", flush=True)  # fmt: skip
    return bool(is_good)


def _write(path: Path, record: dict[str, Any]) -> None:
    path.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
