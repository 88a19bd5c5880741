"""The body of a process that makes batches for another one, and what the two say to each other.

A question is a seed and a number, as JSON. An answer is a header, as JSON, and behind it the bytes
of each field: nothing is pickled.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection

import torch

from naspipe.config.errors import ConfigError, UsersCodeError
from naspipe.config.user_code import users_traceback
from naspipe.data.keyed.batch_digest import plain_bytes

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
