"""Processes that make batches ahead of who asks for them."""

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
"""At each end of a field, what :func:`short_digest` looks at."""


def field_digests(batch: Mapping[str, Any]) -> dict[str, str]:
    """Of each tensor of a batch, 16 hex digits: of its dtype, its shape and all its bytes."""
    tensors = sorted((name, each) for name, each in batch.items() if _is_tensor(each))
    return {name: digest(each) for name, each in tensors}


def short_digest(batch: Mapping[str, Any]) -> str:
    """16 hex digits of a whole batch, from the ends of its fields: fast enough for every pass."""
    whole = hashlib.blake2b(digest_size=8)
    for name in sorted(name for name, each in batch.items() if _is_tensor(each)):
        whole.update(f"{name}={digest(batch[name], SAMPLE_BYTES)};".encode())
    return whole.hexdigest()


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def digest(tensor: torch.Tensor, most: int | None = None) -> str:
    """16 hex digits: of the dtype, the shape and all bytes, or so many at each end."""
    raw = plain_bytes(tensor).numpy().data
    found = hashlib.blake2b(f"{tensor.dtype}{list(tensor.shape)}".encode(), digest_size=8)
    if most is None or len(raw) <= 2 * most:
        found.update(raw)
    else:
        found.update(raw[:most])
        found.update(raw[-most:])
    return found.hexdigest()


def plain_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor in the order of its indices, uint8 (bytes,), in host memory."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


Make = Callable[[int, int], dict[str, torch.Tensor]]
"""(seed, number) -> the batch, in the process that calls it."""


def loader_main(make: Make, connection: Connection, lifeline: int) -> None:
    """Answer questions until there are no more, or nobody holds the other end of the lifeline.

    Args:
        make: makes a batch.
        connection: questions come, answers go.
        lifeline: the end of a pipe to read from; the other end is the parent's alone.
    """
    for number in (signal.SIGINT, signal.SIGHUP):  # the launcher's to answer
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)
    threading.Thread(target=_end_with_parent, args=(lifeline,), daemon=True).start()
    try:
        while True:
            seed, number = json.loads(connection.recv_bytes())
            _answer(make, seed, number, connection)
    except (EOFError, OSError):
        pass  # the parent wants no more
    finally:
        os._exit(0)  # what the parent left for its own end is not this process's to do


def _end_with_parent(lifeline: int) -> None:
    """End at once, whatever the data set is doing."""
    os.read(lifeline, 1)
    os._exit(1)


def _answer(make: Make, seed: int, number: int, connection: Connection) -> None:
    try:
        batch = make(seed, number)
    except ConfigError as error:
        connection.send_bytes(json.dumps({"refusal": str(error)}).encode())
    except Exception as error:
        connection.send_bytes(json.dumps({"failure": users_traceback(error)}).encode())
    else:
        send_batch(connection, batch)


def send_batch(connection: Connection, batch: Mapping[str, torch.Tensor]) -> None:
    """Send tensors by name; their strides are those of contiguous ones."""
    rows = [[name, _name_of(each.dtype), list(each.shape)] for name, each in batch.items()]
    connection.send_bytes(json.dumps({"fields": rows}).encode())
    for each in batch.values():
        if each.numel():
            connection.send_bytes(plain_bytes(each).numpy().data)


def receive_batch(connection: Connection, number: int) -> dict[str, torch.Tensor]:
    """What :func:`send_batch` sent, or what came in its place.

    Raises:
        ConfigError: the one that the other process raised.
        UsersCodeError: with the traceback of anything else that it raised.
        EOFError, OSError: when it has ended.
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


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


_FORK = multiprocessing.get_context("fork")
_AHEAD = 2
"""Batches that each process is asked for at once: it makes one while another one is fetched."""

_Key = tuple[int, int]
"""The seed and the number of a batch."""


class LoaderPool:
    """Loader processes of this process: forked with it, and gone with it.

    Whatever the processes are asked for, and in whichever order they answer, a batch is what its
    number makes it. So only the time depends on the guess, which is that numbers rise by one.

    Each process is a daemon: it ends with the one that forked it, killed or not. A process that is
    forked from here later on takes no part in the pool.

    Args:
        make: makes a batch.
        count: processes, at least 1.
        patience: seconds to wait for one batch.
    """

    def __init__(self, make: Make, count: int, patience: float) -> None:
        self._patience, self._lifeline = patience, -1
        self._lock = threading.Lock()
        self._connections: list[Connection] = []
        self._processes: list[BaseProcess] = []
        self._asked: list[deque[_Key]] = [deque() for _ in range(count)]
        """Of each process, what it has not yet answered, in the order of its answers."""
        self._here: dict[_Key, dict[str, torch.Tensor] | NaspipeError] = {}
        """Batches that have come, and what was raised in the place of one."""
        self._next: dict[int, int] = {}
        """Of each seed, the first number that is not yet guessed."""
        self._surprises = 0
        read_end, self._lifeline = os.pipe()
        _OPEN.add(self)
        with warnings.catch_warnings():
            # Python 3.12 warns of a fork beside threads; the forked process touches none of them.
            warnings.filterwarnings("ignore", message=".*fork.*", category=DeprecationWarning)
            for number in range(count):
                self._start(make, number, read_end)
        os.close(read_end)

    def _start(self, make: Make, number: int, read_end: int) -> None:
        ours, theirs = _FORK.Pipe()
        process = _FORK.Process(
            target=_main, args=(make, ours, theirs, read_end), name=f"naspipe-loader-{number}",
            daemon=True,
        )  # fmt: skip
        process.start()
        theirs.close()
        self._connections.append(ours)
        self._processes.append(process)

    def batch(self, seed: int, number: int) -> dict[str, torch.Tensor]:
        """A batch, fresh each time.

        Raises:
            TransportError: when a process has ended, or gave no batch in time; all are ended then.
            ConfigError, NaspipeError: what the making of the batch raised.
        """
        with self._lock:
            try:
                self._clear(seed, number)
                self._ask_for(seed, number)
                while (seed, number) not in self._here:
                    self._read(self._maker_of((seed, number)))
            except TransportError:
                self._end()  # the life of the run that follows starts others
                raise
            self._forget_far(seed, number)
            found = self._here.pop((seed, number))
        if isinstance(found, NaspipeError):
            raise found
        return found

    def _clear(self, seed: int, number: int) -> None:
        """Take in what has been made and is not next: its makers shall go on with what is."""
        near = range(number, number + _AHEAD * len(self._processes) + 1)
        for worker, asked in enumerate(self._asked):
            while asked and asked[0][0] == seed and asked[0][1] not in near:
                if not self._connections[worker].poll():
                    break
                self._read(worker)

    def _ask_for(self, seed: int, number: int) -> None:
        """Ask for a batch, and for those that are likely to be wanted next."""
        reach = _AHEAD * len(self._processes)
        self._surprises = 0 if self._is_known((seed, number)) else self._surprises + 1
        if self._surprises:
            self._ask((seed, number))
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

    def _maker_of(self, wanted: _Key) -> int:
        return next(each for each, asked in enumerate(self._asked) if wanted in asked)

    def _read(self, worker: int) -> None:
        """Take the next answer of a process."""
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
            self._here[key] = error  # its number may never be asked for
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

    def _forget_far(self, seed: int, number: int) -> None:
        """Drop what was guessed and never asked for."""
        far = 4 * _AHEAD * len(self._processes)
        for key in [key for key in self._here if key[0] == seed and abs(key[1] - number) > far]:
            del self._here[key]

    @property
    def is_open(self) -> bool:
        """Whether there are processes to ask, of this process."""
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
        """Close this process's ends of what leads to the processes."""
        for connection in self._connections:
            connection.close()
        if self._lifeline >= 0:
            os.close(self._lifeline)
        self._connections, self._processes, self._lifeline = [], [], -1
        _OPEN.discard(self)

    def __del__(self) -> None:
        self._let_go()


def _main(make: Make, ours: Connection, theirs: Connection, lifeline: int) -> None:
    own_offsets()
    ours.close()
    loader_main(make, theirs, lifeline)


_OPEN: WeakSet[LoaderPool] = WeakSet()
"""The pools of this process."""


def close_all() -> None:
    """End all loader processes of this process; who wants more batches starts others."""
    for pool in list(_OPEN):
        pool.close()


def _leave_to_parent() -> None:
    """In a forked process: a lifeline must have one holder."""
    for pool in list(_OPEN):
        pool._let_go()


os.register_at_fork(after_in_child=_leave_to_parent)
