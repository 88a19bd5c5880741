"""Batches for the launcher, made in processes that end before the stages start.

Otherwise, resources that a data set opens at its first item (a file, a connection, a library's
state) would be open in the launcher, and shared by all stages that are forked from it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import current_process
from multiprocessing.connection import Connection
from typing import Any

import torch

from naspipe.config.errors import ConfigError, StageFailedError, TransportError
from naspipe.config.user_code import users_traceback
from naspipe.data.loaders import receive_batch, send_batch
from naspipe.jobs.workload import Workload
from naspipe.machine.determinism import deterministic_torch
from naspipe.machine.forking import (
    FORK,
    SILENCE_SECONDS,
    end_all,
    in_own_thread,
    obituary,
    quiet_fork,
)

Data = Callable[[int, int], Mapping[str, Any]]

_KEPT: dict[tuple[int, int, int], tuple[Data, Mapping[str, Any]]] = {}
"""Batches by the id of their data, seed and number; the data are kept so that the id stays valid.
"""
_KEEPING: list[None] = []
"""An entry for each active :func:`batches_kept`."""


@contextmanager
def batches_kept() -> Iterator[None]:
    """Make each batch only once in this context, because a data set's first item may take long."""
    _KEEPING.append(None)
    try:
        yield
    finally:
        _KEEPING.pop()
        if not _KEEPING:
            _KEPT.clear()


def batch_apart(data: Data, seed: int, number: int, threads: int = 1) -> Mapping[str, Any]:
    """Return the tensors of a batch, made in a separate process.

    Values that are not tensors, or that cannot be sent as bytes, are omitted. A daemon process,
    which must not start processes, makes the batch itself.

    Args:
        data: the data of a run.
        seed: the seed of the batch.
        number: the number of the batch.
        threads: the number of torch threads in that process.

    Raises:
        ConfigError: if the data raise it, or return anything but a mapping.
        UsersCodeError: if the data raise any other error, with its traceback.
        StageFailedError: if the process ends without an answer.
        TransportError: if no batch is returned for too long.
    """
    if current_process().daemon:
        return data(seed, number)
    key = id(data), seed, number
    if key not in _KEPT:
        found = _made(data, seed, number, threads)
        if not _KEEPING:
            return found
        _KEPT[key] = data, found
    return dict(_KEPT[key][1])


def first_batch(workload: Workload) -> Mapping[str, Any]:
    """Return the first batch of a run's data; see :func:`batch_apart`."""
    definition = workload.definition
    return batch_apart(workload.data, definition.seed, 0, definition.recipe.threads)


def _made(data: Data, seed: int, number: int, threads: int) -> Mapping[str, Any]:
    receiver, sender = FORK.Pipe(duplex=False)
    process = FORK.Process(
        target=_main, args=(data, seed, number, threads, sender), name="naspipe-batch"
    )
    with receiver, quiet_fork():
        process.start()
        sender.close()
        try:
            if not receiver.poll(SILENCE_SECONDS):
                raise TransportError(
                    f"data({seed}, {number}): expected a batch within {SILENCE_SECONDS:g} s, found "
                    f"none; look at what the data wait for"
                )
            return receive_batch(receiver, number)
        except EOFError:
            raise StageFailedError(0, f"data({seed}, {number})", obituary(process)) from None
        finally:
            end_all([process])


def _main(data: Data, seed: int, number: int, threads: int, sender: Connection) -> None:
    try:
        with deterministic_torch(threads):
            batch = in_own_thread(threads, lambda: data(seed, number))
        if not isinstance(batch, Mapping):
            raise ConfigError(
                f"data: expected a dict of tensors by name from data({seed}, {number}), found "
                f"{type(batch).__name__}"
            )
        sent = {
            name: each.detach().cpu().contiguous()
            for name, each in batch.items()
            if isinstance(each, torch.Tensor) and each.layout is torch.strided and not each.is_meta
        }
    except ConfigError as error:
        sender.send_bytes(json.dumps({"refusal": str(error)}).encode())
    except Exception as error:
        sender.send_bytes(json.dumps({"failure": users_traceback(error)}).encode())
    else:
        send_batch(sender, sent)
