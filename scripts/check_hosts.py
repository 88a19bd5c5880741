"""Two hosts (network namespaces) under torchrun: bits, a cable pulled, a host lost.

Needs root and `ip`. Writes artifacts/faults/hosts.json.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from naspipe.trace.reading.compare import compare_runs  # noqa: E402
from tests.faults.two_hosts import TwoHosts, why_not  # noqa: E402

SMALL = "tests.faults.small_space"
RENDEZVOUS = "join_timeout=120,last_call_timeout=3,keep_alive_interval=2,close_timeout=5"


def run_command(steps: int, path: Path) -> list[str]:
    """What every worker runs; a run that is there already goes on."""
    if (path / "manifest.json").exists():
        return ["naspipe", "train", "--resume", str(path)]
    settings = ("lr=0.02", "window=4", "timeout_seconds=200", "silence_seconds=12")
    return [
        "naspipe", "train", f"{SMALL}:space", "--data", f"{SMALL}:batches", "--steps", str(steps),
        "--seed", "3", "--checkpoint-every", "10", "--run-dir", str(path),
        *(word for each in settings for word in ("--set", each)),
    ]  # fmt: skip


def start(
    hosts: TwoHosts, host: int, nodes: str, restarts: int, steps: int, path: Path
) -> subprocess.Popen[bytes]:
    """torchrun on one host."""
    address = hosts.addresses[host]
    command = [
        "ip", "netns", "exec", hosts.names[host], sys.executable, "-m", "torch.distributed.run",
        "--nnodes", nodes, "--nproc-per-node", "1", "--max-restarts", str(restarts),
        "--rdzv-backend", "c10d", "--rdzv-endpoint", f"{hosts.addresses[0]}:29500",
        "--rdzv-id", "check", "--rdzv-conf", f"{RENDEZVOUS},is_host={1 - host}",
        "--local-addr", address, "-m", *run_command(steps, path),
    ]  # fmt: skip
    log = path.with_name(f"{path.name}.host-{host}.log").open("wb")
    return subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, start_new_session=True)


def wait_for(path: Path, lines: int, seconds: float = 180) -> None:
    """Wait until a run has some losses."""
    deadline = time.monotonic() + seconds
    losses = path / "losses.jsonl"
    while not losses.exists() or losses.read_bytes().count(b"\n") < lines:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{losses} has not grown to {lines} lines")
        time.sleep(0.1)


def end(processes: list[subprocess.Popen[bytes]]) -> None:
    """Leave nothing behind: each torchrun and its workers are a session of their own."""
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def undisturbed(hosts: TwoHosts, path: Path, processes: list[Any]) -> None:
    """Nothing happens."""


def cable(hosts: TwoHosts, path: Path, processes: list[Any]) -> None:
    """Cut off for longer than the time-out, then plugged in again."""
    wait_for(path, 25)
    hosts.cut()
    time.sleep(25)
    hosts.heal()


def killed_stage(hosts: TwoHosts, path: Path, processes: list[Any]) -> None:
    """The stage of host 1 is killed."""
    wait_for(path, 25)
    worker = children(children(processes[1].pid)[0])
    os.kill(worker[0], signal.SIGKILL)


def lost(hosts: TwoHosts, path: Path, processes: list[Any]) -> None:
    """Host 1 is gone for good."""
    wait_for(path, 25)
    hosts.cut()
    os.killpg(processes[1].pid, signal.SIGKILL)


def children(pid: int) -> list[int]:
    """Of all threads of a process."""
    texts = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for text in texts for child in text.read_text().split()]


CASES: list[tuple[Callable[..., None], str, int]] = [
    (undisturbed, "2", 0), (cable, "2", 3), (lost, "1:2", 3), (killed_stage, "2", 3),
    (cable, "2", 0),
]  # fmt: skip
"""What happens, torchrun's --nnodes and --max-restarts."""


def check(case: Any, steps: int, whole: Path, path: Path) -> dict[str, Any]:
    """One case; where torchrun may not restart, it is started once more, to resume."""
    happens, nodes, restarts = case
    began, ends = time.monotonic(), []
    with TwoHosts() as hosts:
        act: Callable[..., None] = happens
        while not ends or (ends[-1][0] != 0 and len(ends) < 2):
            processes = [start(hosts, host, nodes, restarts, steps, path) for host in (0, 1)]
            try:
                act(hosts, path, processes)
                ends.append([each.wait(400) for each in processes])
            finally:
                end(processes)
            act = undisturbed
    life = json.loads((path / "manifest.json").read_text())
    return {
        "case": (happens.__doc__ or "").strip(), "nnodes": nodes, "max_restarts": restarts,
        "ends": ends, "life": life["life"], "stages": life["execution"]["stages"],
        "seconds": round(time.monotonic() - began, 1),
        "verdict": str(compare_runs([whole, path])[0]),
    }  # fmt: skip


def main() -> int:
    """Run every case; the exit status is 1 when a bit differs anywhere, 2 without namespaces."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--only", type=int, nargs="*", help="numbers of cases; all unless given")
    parser.add_argument("--output", type=Path, default=ROOT / "artifacts/faults/hosts.json")
    arguments = parser.parse_args()
    if reason := why_not():
        print(reason, file=sys.stderr)
        return 2
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="np") as scratch:
        whole = Path(scratch) / "whole"
        command = [sys.executable, "-m", *run_command(arguments.steps, whole), "--quiet"]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        for number, case in enumerate(CASES):
            if arguments.only and number not in arguments.only:
                continue
            path = Path(scratch) / f"run-{number}"
            try:
                rows.append(check(case, arguments.steps, whole, path))
            except (Exception, KeyboardInterrupt) as error:
                logs = [log.read_text("utf-8", "replace")[-1500:] for log in
                        sorted(Path(scratch).glob(f"run-{number}.*.log"))]  # fmt: skip
                rows.append({"case": case[0].__doc__, "verdict": repr(error), "logs": logs})
            print(rows[-1], flush=True)
            arguments.output.parent.mkdir(parents=True, exist_ok=True)
            arguments.output.write_text(json.dumps(rows, indent=1) + "\n")
    return int(any(row["verdict"] != "IDENTICAL" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
