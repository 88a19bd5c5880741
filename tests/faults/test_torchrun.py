"""Two torchruns on one machine: a signal to one of them ends both, the same command goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack

import pytest

from naspipe.cli.main import main
from naspipe.store.compare import compare_runs
from tests.cli.test_bad_input import free_ports
from tests.faults.test_hosts import RUN
from tests.launch.test_launcher_death import wait_until
from tests.test_architecture import ROOT


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "run"
    assert main([*RUN, "--run-dir", str(path)]) == 0
    return path


class Torchruns:
    """The same command on two hosts that share this machine; ``said`` is what each wrote."""

    def __init__(self, stack, path):
        self.path = path
        port = free_ports(5)
        self.logs = [path.with_name(f"host-{host}.log") for host in (0, 1)]
        self.processes = []
        for host, log in enumerate(self.logs):
            file = stack.enter_context(log.open("wb"))
            words = [
                sys.executable, "-m", "torch.distributed.run", "--nnodes", "2",
                "--nproc-per-node", "1", "--max-restarts", "3", "--rdzv-backend", "c10d",
                "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "one",
                "--rdzv-conf", f"is_host={1 - host}", "--local-addr", f"127.0.0.{host + 1}",
                "-m", "naspipe", *RUN, "--run-dir", str(path), "--set", f"port={port + 1}",
                "--resume-if-exists",
            ]  # fmt: skip
            environment = {**os.environ, "PYTHONPATH": str(ROOT)}
            self.processes.append(
                subprocess.Popen(
                    words, cwd=ROOT, stdout=file, stderr=file, env=environment,
                    start_new_session=True,
                )
            )  # fmt: skip
            stack.callback(self._end, self.processes[-1])

    def _end(self, process):
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def join(self, seconds):
        deadline = time.monotonic() + seconds
        return [each.wait(max(0.1, deadline - time.monotonic())) for each in self.processes]

    def wait_for(self, lines):
        losses = self.path / "losses.jsonl"
        wait_until(lambda: losses.exists() and losses.read_bytes().count(b"\n") >= lines, 90)

    @property
    def said(self):
        return [log.read_text("utf-8", "replace") for log in self.logs]


@pytest.mark.parametrize("host", [pytest.param(0, marks=pytest.mark.long), 1])
def test_a_signal_to_one_ends_the_other_at_once(tmp_path, whole, host):
    """Though torchrun may start its workers three times more: it waited 600 s to do so."""
    with ExitStack() as stack:
        first = Torchruns(stack, tmp_path / "run")
        first.wait_for(12)
        first.processes[host].send_signal(signal.SIGTERM)
        start = time.monotonic()
        assert first.join(60) == [1, 1], first.said
        assert time.monotonic() - start < 30
        assert "interrupted by SIGTERM, with a checkpoint at subnet" in first.said[0]
        assert "rank 0 ended the run: interrupted by SIGTERM" in first.said[1]
        manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
        assert (manifest["status"], manifest["life"]["generation"]) == ("interrupted", 0)
        second = Torchruns(stack, tmp_path / "run")
        assert second.join(90) == [0, 0], second.said
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["life"]["generation"] == 1
    (comparison,) = compare_runs([whole, tmp_path / "run"])
    assert comparison.is_identical, str(comparison)
