"""Links that are slow or dead, and a process that stands still for a while."""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
import time
from contextlib import suppress

import pytest

from naspipe.config.errors import StageFailedError
from naspipe.store.compare import compare_runs
from naspipe.wire import transport
from naspipe.worker import stage_process
from tests.cli.test_bad_input import free_ports
from tests.equivalence import spaces
from tests.faults.helpers import Calm, train


class Proxy:
    """Hands bytes on, in small pieces and late; after ``most`` bytes it keeps them to itself."""

    def __init__(self, target, most=None):
        self.target, self.left = target, most
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with suppress(OSError):
            while True:
                near, _ = self.listener.accept()
                threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near):
        with near, suppress(OSError):
            far = self._reach()
            with far:
                other = {near: far, far: near}
                while True:
                    for one in select.select([near, far], [], [])[0]:
                        data = one.recv(4096)
                        if not data:
                            return
                        if self.left is not None:
                            self.left -= len(data)
                        if self.left is None or self.left > 0:
                            time.sleep(0.001)
                            other[one].sendall(data)

    def _reach(self):
        for _ in range(200):
            with suppress(ConnectionRefusedError):
                return socket.create_connection(self.target)
            time.sleep(0.05)
        raise OSError("the stage does not listen")


@pytest.fixture
def through(monkeypatch):
    """Let what goes to stage 1 take the way through a proxy."""
    port, proxies = free_ports(3), []

    def make(most=None):
        proxy = Proxy(("127.0.0.1", port + 1), most)
        proxies.append(proxy)
        connect = transport.connect_outbox

        def detour(context, address, endpoints):
            if address != endpoints.workers[1]:
                return connect(context, address, endpoints)
            place = f"tcp://127.0.0.1:{proxy.port}"
            keys = {**endpoints.public_keys, place: endpoints.public_keys[address]}
            found = type(endpoints)(endpoints.workers, endpoints.launcher, keys, endpoints.own_keys)
            return connect(context, place, found)

        monkeypatch.setattr(transport, "connect_outbox", detour)
        return {"transport": "tcp", "port": port}

    yield make
    for proxy in proxies:
        proxy.listener.close()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return train(tmp_path_factory.mktemp("whole") / "run", Calm(spaces.vectors))


def assert_identical(one, other):
    (comparison,) = compare_runs([one.directory.path, other.directory.path])
    assert comparison.is_identical, str(comparison)


def test_a_slow_link_changes_no_bit(tmp_path, through, whole):
    run = train(tmp_path / "run", Calm(spaces.vectors), stages=2, execution=through())
    assert_identical(whole, run)


def test_a_half_open_link_ends_the_run_and_it_goes_on(tmp_path, through, whole, monkeypatch):
    """Connected, and nothing comes: named within the time-out. The next life has a good link."""
    monkeypatch.setattr(stage_process, "GRACE_SECONDS", 0.5)
    path, start = tmp_path / "run", time.monotonic()
    dead = {**through(most=20_000), "timeout_seconds": 4.0}
    with pytest.raises(StageFailedError, match=r"nothing arrived for 4\.5 s; oldest work: "):
        train(path, Calm(spaces.vectors), stages=2, execution=dead)
    assert time.monotonic() - start < 25
    monkeypatch.undo()
    assert_identical(whole, train(path, Calm(spaces.vectors), stages=2, resume=True))


class Stands:
    """Data that stops the process that reads one batch, and has it continued later."""

    record = Calm.record

    def __init__(self, marker, seconds):
        self.marker, self.seconds = marker, seconds

    def __call__(self, seed, sequence_id):
        if sequence_id == 9 and not self.marker.exists():
            self.marker.write_text("stopped")
            if os.fork() == 0:
                time.sleep(self.seconds)
                os.kill(os.getppid(), signal.SIGCONT)
                os._exit(0)
            os.kill(os.getpid(), signal.SIGSTOP)
            os.wait()
        return spaces.vectors(seed, sequence_id)


def test_a_stage_that_stands_still_for_less_than_the_time_out(tmp_path, whole):
    run = train(tmp_path / "run", Stands(tmp_path / "marker", 2.0), stages=2)
    assert (tmp_path / "marker").exists() and run.manifest["life"]["generation"] == 0
    assert_identical(whole, run)
