"""A Redis server for a test: the real one where it is installed, otherwise fakeredis's."""

from __future__ import annotations

import multiprocessing
import shutil
import socket
import subprocess
import time
from contextlib import contextmanager

PROGRAM = shutil.which("redis-server") or shutil.which("valkey-server")
KIND = PROGRAM or "fakeredis"
"""Which one runs here."""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for_port(port):
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.02)
    raise AssertionError("the server does not answer")


class RealServer:
    """Can be killed and started again, empty."""

    def __init__(self, directory):
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}"
        self._directory = directory
        self.start()

    def start(self):
        command = [PROGRAM, "--port", str(self.port), "--save", "", "--dir", str(self._directory)]
        self._process = subprocess.Popen(
            [*command, "--bind", "127.0.0.1"], stdout=subprocess.DEVNULL
        )
        wait_for_port(self.port)

    def kill(self):
        self._process.kill()
        self._process.wait(10)


class FakeServer:
    """fakeredis's, in a process of its own: others that are forked do not hold its port."""

    def __init__(self, directory):
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}"
        self.start()

    def start(self):
        self._process = multiprocessing.get_context("fork").Process(target=self._serve)
        self._process.start()
        wait_for_port(self.port)

    def _serve(self):
        from fakeredis import TcpFakeServer

        TcpFakeServer.allow_reuse_address = True
        TcpFakeServer(("127.0.0.1", self.port), server_type="redis").serve_forever()

    def kill(self):
        self._process.kill()
        self._process.join(10)


@contextmanager
def redis_server(directory):
    server = (RealServer if PROGRAM else FakeServer)(directory)
    try:
        yield server
    finally:
        server.kill()
