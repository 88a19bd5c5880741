"""Loader processes, which make batches in advance, and digests of batches.

A pool forks its processes, requests batches from them by number, and predicts that numbers rise by
one. A wrong prediction only costs time, because a batch depends only on its number. torch's
``DataLoader`` is not used: it fixes the order of the batches when an iteration begins, while stages
and resumes request any number, and its processes pickle their results.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import signal
import threading
import warnings
from collections import deque
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any
from weakref import WeakSet

import torch

from naspipe.config.errors import ConfigError, NaspipeError, TransportError, UsersCodeError
from naspipe.config.user_code import users_traceback
from naspipe.machine.forking import own_offsets

SAMPLE_BYTES = 16 * 1024
"""Number of bytes that :func:`short_digest` reads at each end of a field."""


def field_digests(batch: Mapping[str, Any]) -> dict[str, str]:
    """Return the :func:`digest` of each tensor of a batch, by name."""
    tensors = {name: each for name, each in batch.items() if isinstance(each, torch.Tensor)}
    return {name: digest(tensors[name]) for name in sorted(tensors)}


def short_digest(batch: Mapping[str, Any]) -> str:
    """Return 16 hex digits of a batch, from the ends of its fields: fast enough for every pass."""
    whole = hashlib.blake2b(digest_size=8)
    for name in sorted(name for name, each in batch.items() if isinstance(each, torch.Tensor)):
        whole.update(f"{name}={digest(batch[name], SAMPLE_BYTES)};".encode())
    return whole.hexdigest()


def digest(tensor: torch.Tensor, most: int | None = None) -> str:
    """Return 16 hex digits of dtype, shape and all bytes, or of ``most`` bytes at each end."""
    raw = plain_bytes(tensor).numpy().data
    found = hashlib.blake2b(f"{tensor.dtype}{list(tensor.shape)}".encode(), digest_size=8)
    if most is None or len(raw) <= 2 * most:
        found.update(raw)
    else:
        found.update(raw[:most])
        found.update(raw[-most:])
    return found.hexdigest()


def plain_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a tensor in the order of its indices: uint8 (bytes,), in host memory."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


Make = Callable[[int, int], dict[str, torch.Tensor]]
"""(seed, number) -> the batch, made in the calling process."""


def send_batch(connection: Connection, batch: Mapping[str, torch.Tensor]) -> None:
    """Send tensors by name; they arrive contiguous."""
    rows = [
        [name, str(each.dtype).removeprefix("torch."), list(each.shape)]
        for name, each in batch.items()
    ]
    connection.send_bytes(json.dumps({"fields": rows}).encode())
    for each in batch.values():
        if each.numel():
            connection.send_bytes(plain_bytes(each).numpy().data)


def receive_batch(connection: Connection, number: int) -> dict[str, torch.Tensor]:
    """Receive a batch from :func:`send_batch`, or raise the error that was sent instead.

    Raises:
        ConfigError: the one that the other process raised.
        UsersCodeError: with the traceback of any other exception that it raised.
        EOFError, OSError: if it has ended.
    """
    header = json.loads(connection.recv_bytes())
    if refusal := header.get("refusal"):
        raise ConfigError(refusal)
    if failure := header.get("failure"):
        raise UsersCodeError(f"data: a loader process failed in batch {number}\n{failure}")
    batch = {}
    for name, dtype, shape in header["fields"]:
        found = torch.empty(shape, dtype=getattr(torch, dtype))
        if found.numel():
            connection.recv_bytes_into(plain_bytes(found).numpy().data)
        batch[name] = found
    return batch


def _loader_main(make: Make, ours: Connection, theirs: Connection, lifeline: int) -> None:
    """Make the requested batches, until the connection or the lifeline is closed.

    Args:
        make: makes a batch.
        ours: the parent's end of the connection, which is closed here.
        theirs: receives requests and sends batches.
        lifeline: the read end of a pipe whose other end only the parent holds.
    """
    own_offsets()
    ours.close()
    for signal_number in (signal.SIGINT, signal.SIGHUP):  # the launcher handles these
        signal.signal(signal_number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)

    def end_with_parent() -> None:
        os.read(lifeline, 1)
        os._exit(1)  # immediately, whatever the data set is doing

    threading.Thread(target=end_with_parent, daemon=True).start()
    try:
        while True:
            seed, number = json.loads(theirs.recv_bytes())
            try:
                batch = make(seed, number)
            except ConfigError as error:
                theirs.send_bytes(json.dumps({"refusal": str(error)}).encode())
            except Exception as error:
                theirs.send_bytes(json.dumps({"failure": users_traceback(error)}).encode())
            else:
                send_batch(theirs, batch)
    except (EOFError, OSError):
        pass  # the parent needs no more batches
    finally:
        os._exit(0)  # exit handlers that the parent registered must not run here


_FORK = multiprocessing.get_context("fork")
_AHEAD = 2
"""Number of open requests per process: it makes one batch while another one is fetched."""

_Key = tuple[int, int]
"""The seed and the number of a batch."""


class LoaderPool:
    """The loader processes of one process, which end with it.

    Each process is a daemon: it ends with the process that forked it, even if that is killed.
    Processes forked later from this one do not use the pool.

    Args:
        make: makes a batch.
        count: the number of processes, at least 1.
        patience: seconds to wait for one batch.
    """

    def __init__(self, make: Make, count: int, patience: float) -> None:
        self._patience, self._lifeline = patience, -1
        self._lock = threading.Lock()
        self._connections: list[Connection] = []
        self._processes: list[BaseProcess] = []
        self._asked: list[deque[_Key]] = [deque() for _ in range(count)]
        """For each process, the unanswered requests, in the order in which it answers."""
        self._here: dict[_Key, dict[str, torch.Tensor] | NaspipeError] = {}
        """Batches that have arrived, or the error that was raised instead."""
        self._next: dict[int, int] = {}
        """For each seed, the first number that has not been requested as a prediction."""
        self._surprises = 0
        read_end, self._lifeline = os.pipe()
        _OPEN.add(self)
        with warnings.catch_warnings():
            # Python 3.12 warns about forking a process with threads; the child does not use them.
            warnings.filterwarnings("ignore", message=".*fork.*", category=DeprecationWarning)
            for number in range(count):
                ours, theirs = _FORK.Pipe()
                process = _FORK.Process(
                    target=_loader_main,
                    args=(make, ours, theirs, read_end),
                    name=f"naspipe-loader-{number}",
                    daemon=True,
                )
                process.start()
                theirs.close()
                self._connections.append(ours)
                self._processes.append(process)
        os.close(read_end)

    def batch(self, seed: int, number: int) -> dict[str, torch.Tensor]:
        """Return a batch as new tensors.

        Raises:
            TransportError: if a process has ended, or sent no batch in time; then all processes are
                ended.
            ConfigError, NaspipeError: the error raised while the batch was made.
        """
        key = seed, number
        reach = _AHEAD * len(self._processes)
        with self._lock:
            try:
                # Receive wrongly predicted batches, so that their processes can continue.
                for worker, asked in enumerate(self._asked):
                    while asked and asked[0][0] == seed and not 0 <= asked[0][1] - number <= reach:
                        if not self._connections[worker].poll():
                            break
                        self._read(worker)
                self._ask_for(key, reach)
                while key not in self._here:
                    self._read(next(at for at, asked in enumerate(self._asked) if key in asked))
            except TransportError:
                self._end()  # the next attempt of the run starts new ones
                raise
            found = self._here.pop(key)
            for each in list(self._here):  # predicted and never requested
                if each[0] == seed and abs(each[1] - number) > 4 * reach:
                    del self._here[each]
        if isinstance(found, NaspipeError):
            raise found
        return found

    def _ask_for(self, key: _Key, reach: int) -> None:
        """Request a batch, and those that are likely to be needed next."""
        seed, number = key
        self._surprises = 0 if self._is_known(key) else self._surprises + 1
        if self._surprises:
            self._ask(key)
            if number >= self._next.get(seed, 0) or self._surprises > 1:
                self._next[seed] = number + 1
        while self._next[seed] <= number + reach and min(map(len, self._asked)) < _AHEAD:
            if not self._is_known((seed, self._next[seed])):
                self._ask((seed, self._next[seed]))
            self._next[seed] += 1

    def _is_known(self, key: _Key) -> bool:
        return key in self._here or any(key in asked for asked in self._asked)

    def _ask(self, key: _Key) -> None:
        worker = min(range(len(self._asked)), key=lambda each: (len(self._asked[each]), each))
        try:
            self._connections[worker].send_bytes(f"[{key[0]}, {key[1]}]".encode())
        except OSError:
            raise self._ended(worker, key) from None
        self._asked[worker].append(key)

    def _read(self, worker: int) -> None:
        """Receive the next answer of a process."""
        key, connection = self._asked[worker][0], self._connections[worker]
        if not connection.poll(self._patience):
            raise TransportError(
                f"data: expected batch {key[1]} from a loader process within "
                f"{self._patience:g} s, found none; is an item of the data set stuck? "
                f"from_dataset(..., timeout_seconds=...) sets the time"
            )
        self._asked[worker].popleft()
        try:
            self._here[key] = receive_batch(connection, key[1])
        except NaspipeError as error:
            self._here[key] = error  # its number may never be requested
        except (EOFError, OSError):
            raise self._ended(worker, key) from None

    def _ended(self, worker: int, key: _Key) -> TransportError:
        process = self._processes[worker]
        process.join(1.0)
        code = process.exitcode
        how = f"was killed by signal {-code}" if code and code < 0 else f"ended with status {code}"
        return TransportError(
            f"data: expected batch {key[1]} from loader process {worker}, which {how}; is there "
            f"memory for workers={len(self._processes)}?"
        )

    @property
    def is_open(self) -> bool:
        """True if this process has running loader processes."""
        return bool(self._processes)

    def close(self) -> None:
        """End the processes; a second call does nothing."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
            process.close()
        self._let_go()

    def _let_go(self) -> None:
        """Close this process's ends of connections and lifeline without ending the processes."""
        for connection in self._connections:
            connection.close()
        if self._lifeline >= 0:
            os.close(self._lifeline)
        self._connections, self._processes, self._lifeline = [], [], -1
        _OPEN.discard(self)

    def __del__(self) -> None:
        self._let_go()


_OPEN: WeakSet[LoaderPool] = WeakSet()
"""The pools of this process."""


def close_all() -> None:
    """End all loader processes of this process; new ones are started when needed."""
    for pool in list(_OPEN):
        pool.close()


def _leave_to_parent() -> None:
    """Close all pools in a forked process, because a lifeline must have a single holder."""
    for pool in list(_OPEN):
        pool._let_go()


os.register_at_fork(after_in_child=_leave_to_parent)
