"""Addresses and keys of the workers and the launcher of a run."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import zmq

from naspipe.config.errors import ConfigError
from naspipe.config.execution import Execution
from naspipe.wire.shared_rings import Rings

SOCKETS_PREFIX = "naspipe-"
"""Prefix of the names of private directories."""

_NEW_PREFIX = ".np-"
_OWNED = ".owned"


@contextmanager
def private_directory() -> Iterator[Path]:
    """Create a directory for this process and its forks, which is removed on exit."""
    sweep()
    new = Path(tempfile.mkdtemp(prefix=_NEW_PREFIX))
    # The directory is renamed after it is locked, so that no other process removes it before.
    descriptor = os.open(new / _OWNED, os.O_RDWR | os.O_CREAT, 0o600)
    path = new.with_name(f"{SOCKETS_PREFIX}{new.name.removeprefix(_NEW_PREFIX)}")
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        new.rename(path)
        yield path
    finally:
        os.close(descriptor)
        for each in (new, path):
            shutil.rmtree(each, ignore_errors=True)


def sweep() -> list[Path]:
    """Remove and return this user's private directories that no process holds any more."""
    swept = []
    for path in Path(tempfile.gettempdir()).glob(f"{SOCKETS_PREFIX}*"):
        with suppress(OSError):
            if path.stat().st_uid == os.getuid() and _is_left(path / _OWNED):
                shutil.rmtree(path)
                swept.append(path)
    return swept


def _is_left(owned: Path) -> bool:
    descriptor = os.open(owned, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)


_MAX_IPC_PATH = 90
_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Addresses of the workers and the launcher and, for tcp, the CURVE keys of the run."""

    workers: tuple[str, ...]
    launcher: str
    public_keys: Mapping[str, bytes] = field(default_factory=dict)
    """The public key of the listener at each address; only these keys are admitted."""
    own_keys: tuple[bytes, bytes] | None = None
    """Public and secret key of this process."""
    directory: Path = Path()
    """The private directory of the run on this machine."""
    rings: Rings | None = None
    """Shared memory of the workers, if all are forked from one process and it is allowed."""


def check_endpoints(execution: Execution) -> None:
    """Check that addresses for the stages are available on this machine, without binding them."""
    if execution.workers > 1 or execution.hardware.device != "cpu":
        make_endpoints(execution, Path(tempfile.gettempdir()) / f"{SOCKETS_PREFIX}{8 * 'x'}")


def make_endpoints(execution: Execution, directory: Path) -> Endpoints:
    """Return addresses on this machine for a run's stages and its launcher."""
    if execution.wire.transport == "tcp":
        return tcp_endpoints(execution.wire.port, execution.workers, directory)
    found = ipc_endpoints(directory, execution.workers)
    return replace(found, rings=None) if execution.wire.data_path == "zmq" else found


def ipc_endpoints(directory: Path, num_stages: int) -> Endpoints:
    """Return endpoints in a private directory; ConfigError if its path is too long for a socket."""
    if len(str(directory)) > _MAX_IPC_PATH:
        raise ConfigError(
            f"the temporary directory {directory} is too long for a socket's name (expected at "
            f"most {_MAX_IPC_PATH} characters): set TMPDIR to a shorter one, or --set transport=tcp"
        )
    stages = tuple(f"ipc://{directory}/stage-{stage}" for stage in range(num_stages))
    launcher = f"ipc://{directory}/launcher"
    return Endpoints(stages, launcher, directory=directory, rings=Rings(num_stages))


def tcp_endpoints(port: int, num_stages: int, directory: Path = Path()) -> Endpoints:
    """Return endpoints on the loopback interface with new keys; ConfigError if a port is in use."""
    ports = range(port, port + num_stages + 1)
    check_ports(_LOOPBACK, ports)
    addresses = [f"tcp://{_LOOPBACK}:{number}" for number in ports]
    pair = zmq.curve_keypair()
    keys = dict.fromkeys(addresses, pair[0])
    return Endpoints(tuple(addresses[:-1]), addresses[-1], keys, pair, directory)


def check_ports(
    address: str, ports: Sequence[int], keys: tuple[str, str] = ("port", "interface")
) -> None:
    """Check that ports of an address of this machine are free, without binding them.

    Args:
        address: an address that should belong to this machine.
        ports: the ports to check.
        keys: names of the settings for ports and the address, for messages.
    """
    for number in ports:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            # As in ZeroMQ, ports that an earlier attempt has closed are free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((address, number))
                probe.listen(1)
            except OSError as error:
                if error.errno == errno.EADDRNOTAVAIL:
                    raise ConfigError(
                        f"{address} is no address of this host ({os.uname().nodename}): expected "
                        f"one that it has, as `ip address` lists them; choose another with --set "
                        f"{keys[1]}=..."
                    ) from None
                which = f"ports {ports[0]} to {ports[-1]}" if len(ports) > 1 else f"port {number}"
                why = "is in use" if error.errno == errno.EADDRINUSE else "cannot be had"
                raise ConfigError(
                    f"port {number} {why} ({error.strerror}): the run needs the {which} of "
                    f"{address} free; choose others with --set {keys[0]}=N"
                ) from None
