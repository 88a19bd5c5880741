"""Two hosts (network namespaces) under torchrun: bits, a cable pulled, a host lost.

A stage on each host, and a group on each host.

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
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from naspipe.store.compare import compare_runs  # noqa: E402
from tests.faults.two_hosts import TwoHosts, why_not  # noqa: E402

SMALL = "tests.faults.small_space"
RENDEZVOUS = "join_timeout=120,last_call_timeout=3,keep_alive_interval=2,close_timeout=5"


class Steps(NamedTuple):
    """What is trained: passes in all, and in each step."""

    passes: int
    of_each: int = 1

    @property
    def settings(self) -> tuple[str, ...]:
        """A window is as many steps, whatever their passes; so is what lies between checkpoints."""
        window = f"window={4 * self.of_each}"
        return (window, f"passes=accumulate:{self.of_each}") if self.of_each > 1 else (window,)


class Case(NamedTuple):
    """What happens, torchrun's --nnodes and --max-restarts, and the groups of a grouped run."""

    happens: Callable[..., tuple[int, ...]]
    nodes: str
    restarts: int
    groups: int = 1


def run_command(steps: Steps, path: Path, groups: int = 1) -> list[str]:
    """What every worker runs; a run that is there already goes on."""
    if (path / "manifest.json").exists():
        return ["naspipe", "train", "--resume", str(path), "--groups", str(groups)]
    settings = ("lr=0.02", "timeout_seconds=200", "silence_seconds=12", *steps.settings)
    number, between = steps.passes // steps.of_each, max(2, 10 // steps.of_each)
    return [
        "naspipe", "train", f"{SMALL}:space", "--data", f"{SMALL}:batches",
        "--steps", str(number), "--seed", "3", "--checkpoint-every", str(between),
        "--run-dir", str(path), "--groups", str(groups),
        *(word for each in settings for word in ("--set", each)),
    ]  # fmt: skip


def start(
    hosts: TwoHosts, host: int, case: Case, command: list[str], log: Path
) -> subprocess.Popen[bytes]:
    """torchrun on one host."""
    address = hosts.addresses[host]
    words = [
        "ip", "netns", "exec", hosts.names[host], sys.executable, "-m", "torch.distributed.run",
        "--nnodes", case.nodes, "--nproc-per-node", "1", "--max-restarts", str(case.restarts),
        "--rdzv-backend", "c10d", "--rdzv-endpoint", f"{hosts.addresses[0]}:29500",
        "--rdzv-id", "check", "--rdzv-conf", f"{RENDEZVOUS},is_host={1 - host}",
        "--local-addr", address, "--log-dir", str(log.parent), "-m", *command,
    ]  # fmt: skip
    with log.open("ab") as file:
        return subprocess.Popen(words, cwd=ROOT, stdout=file, stderr=file, start_new_session=True)


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


BOTH = (0, 1)


def undisturbed(hosts: TwoHosts, path: Path, processes: list[Any]) -> tuple[int, ...]:
    """Nothing happens."""
    return BOTH


def cable(hosts: TwoHosts, path: Path, processes: list[Any]) -> tuple[int, ...]:
    """Cut off for longer than the time-out, then plugged in again."""
    wait_for(path, 25)
    hosts.cut()
    time.sleep(25)
    hosts.heal()
    return BOTH


def killed_stage(hosts: TwoHosts, path: Path, processes: list[Any]) -> tuple[int, ...]:
    """The stage of host 1 is killed."""
    wait_for(path, 25)
    worker = children(children(processes[1].pid)[0])
    os.kill(worker[0], signal.SIGKILL)
    return BOTH


def lost(hosts: TwoHosts, path: Path, processes: list[Any]) -> tuple[int, ...]:
    """Host 1 is gone for good."""
    wait_for(path, 25)
    hosts.cut()
    os.killpg(processes[1].pid, signal.SIGKILL)
    return (0,)


def children(pid: int) -> list[int]:
    """Of all threads of a process."""
    texts = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for text in texts for child in text.read_text().split()]


CASES = [
    Case(undisturbed, "2", 0), Case(cable, "2", 3), Case(lost, "1:2", 3),
    Case(killed_stage, "2", 3), Case(cable, "2", 0),
    Case(undisturbed, "2", 0, groups=2), Case(cable, "2", 3, groups=2),
    Case(cable, "2", 0, groups=2), Case(killed_stage, "2", 3, groups=2),
    Case(lost, "1:2", 1, groups=2),
]  # fmt: skip
"""Each thing that happens says which hosts are left."""


def check(case: Case, steps: Steps, whole: Path, path: Path) -> dict[str, Any]:
    """One case; where torchrun gives up, it is started once more on what is left, to resume."""
    began, ends, logs = time.monotonic(), [], []
    now, here = case, BOTH
    with TwoHosts() as hosts:
        while not ends or (ends[-1][0] != 0 and len(ends) < 2):
            command = run_command(steps, path, now.groups)
            logs = [path.with_name(f"{path.name}.host-{host}.log") for host in here]
            processes = [
                start(hosts, host, now, command, log) for host, log in zip(here, logs, strict=True)
            ]
            try:
                left = now.happens(hosts, path, processes)
                ends.append([each.wait(400) for each in processes])
            finally:
                end(processes)
            here = tuple(host for host in here if host in left)
            nodes = case.nodes if here == BOTH else str(len(here))
            now = Case(undisturbed, nodes, case.restarts, min(case.groups, len(here)))
    life = json.loads((path / "manifest.json").read_text())
    return {
        "case": (case.happens.__doc__ or "").strip(), "nnodes": case.nodes,
        "max_restarts": case.restarts, "groups": case.groups, "ends": ends,
        "said": complaints(logs[0]), "life": life["life"], "stages": life["execution"]["stages"],
        "last_groups": life["execution"]["groups"],
        "seconds": round(time.monotonic() - began, 1),
        "verdict": str(compare_runs([whole, path])[0]),
    }  # fmt: skip


def complaints(log: Path) -> list[str]:
    """Why naspipe ended each time, as its rank 0 said; nothing for a run that did not fail."""
    lines = log.read_text("utf-8", "replace").splitlines()
    said = [line for line in lines if line.startswith("naspipe: ") and "going on at" not in line]
    return list(dict.fromkeys(said))


def main() -> int:
    """Run every case; the exit status is 1 when a bit differs anywhere, 2 without namespaces."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--passes", type=int, default=152, help="of each run, in all")
    parser.add_argument("--only", type=int, nargs="*", help="numbers of cases; all unless given")
    parser.add_argument("--output", type=Path, default=ROOT / "artifacts/faults/hosts.json")
    arguments = parser.parse_args()
    if reason := why_not():
        print(reason, file=sys.stderr)
        return 2
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="np") as scratch:
        wholes: dict[Steps, Path] = {}
        for number, case in enumerate(CASES):
            if arguments.only and number not in arguments.only:
                continue
            path = Path(scratch) / f"run-{number}"
            steps = Steps(arguments.passes, 4 if case.groups > 1 else 1)
            whole = wholes.setdefault(steps, Path(scratch) / f"whole-{steps.of_each}")
            try:
                if not whole.exists():
                    command = [sys.executable, "-m", *run_command(steps, whole), "--quiet"]
                    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
                rows.append(check(case, steps, whole, path))
            except (Exception, KeyboardInterrupt) as error:
                logs = [log.read_text("utf-8", "replace")[-1500:] for log in
                        sorted(Path(scratch).glob(f"run-{number}.*.log"))]  # fmt: skip
                rows.append({"case": case.happens.__doc__, "verdict": repr(error), "logs": logs})
            print(rows[-1], flush=True)
            arguments.output.parent.mkdir(parents=True, exist_ok=True)
            arguments.output.write_text(json.dumps(rows, indent=1) + "\n")
    return int(any(row["verdict"] != "IDENTICAL" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
