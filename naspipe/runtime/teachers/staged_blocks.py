"""A teacher that is larger than a device: its blocks lie in several processes."""

from __future__ import annotations

import os
import threading
import traceback
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain, pairwise
from multiprocessing.connection import Connection
from typing import Any, Self

import msgpack
import torch

from naspipe.config.errors import ConfigError, TransportError
from naspipe.planning.balance import balanced_partition
from naspipe.runtime.blocks.specs import Tensors
from naspipe.runtime.devices.determinism import deterministic_torch
from naspipe.runtime.forking.fork import FORK, end_all, quiet_fork
from naspipe.runtime.forking.own_thread import in_own_thread
from naspipe.runtime.jobs.workload import Workload
from naspipe.runtime.labels.label_network import LabelNetwork, run_block
from naspipe.runtime.memory.heap import kept_heap
from naspipe.runtime.teachers.lifeline import end_with_parent
from naspipe.runtime.wire.tensor_codec import decode, encode

_TIMEOUT_SECONDS = 300.0


class StagedBlocks:
    """A :data:`naspipe.runtime.labels.label_network.Forward` over processes; a context manager.

    They are forked from this one, which must not have started CUDA. A batch goes through one after
    the other, with strides and alignment, so the bits are those of one process.

    Args:
        teacher: its workload.
        devices: of each process.

    Raises:
        ConfigError: for more processes than blocks.
    """

    def __init__(self, teacher: Workload, devices: Sequence[str]) -> None:
        bounds = balanced_partition(_sizes(teacher), len(devices)).bounds
        self._stages: list[tuple[range, Connection]] = []
        self._processes: list[Any] = []
        self._stack = ExitStack()
        read_end, write_end = os.pipe()
        self._stack.callback(os.close, write_end)
        self._stack.callback(end_all, self._processes)
        for (first, end), device in zip(pairwise(bounds), devices, strict=True):
            own, theirs = FORK.Pipe()
            self._stack.callback(own.close)
            process = FORK.Process(
                target=_stage_main,
                args=(teacher, range(first, end), device, theirs, (read_end, write_end)),
                name=f"naspipe-teacher-blocks-{first}",
            )
            with quiet_fork():
                process.start()
            theirs.close()
            self._processes.append(process)
            self._stages.append((range(first, end), own))
        os.close(read_end)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def __call__(self, teacher: Workload, number: int, fields: list[Tensors]) -> Tensors:
        """See there.

        Raises:
            ConfigError: when a block has failed.
            TransportError: when a process is gone, or does not answer: no label comes any more.
        """
        state: Tensors = ()
        for blocks, connection in self._stages:
            taken = list(chain.from_iterable(fields[block] for block in blocks))
            counts = [len(fields[block]) for block in blocks]
            try:
                header = [number, len(state), counts, teacher.recipe.precision]
                _send(connection, header, (*state, *taken))
                if not connection.poll(_TIMEOUT_SECONDS):
                    raise EOFError(f"no answer within {_TIMEOUT_SECONDS:g} s")
                problem, state = _receive(connection)
            except (EOFError, OSError) as error:
                raise TransportError(
                    f"teacher: expected blocks {blocks.start} to {blocks.stop - 1} in a process of "
                    f"their own, found that it has ended: {error}"
                ) from error
            if problem:
                raise ConfigError(f"teacher: blocks {blocks.start} to {blocks.stop - 1}: {problem}")
        return state


def staged_network(teacher: Workload, devices: Sequence[str], stack: ExitStack) -> LabelNetwork:
    """A teacher on one device in this process, or on several in processes of their own.

    Args:
        teacher: its workload.
        devices: one for each process.
        stack: ends them.
    """
    if len(devices) == 1:
        return LabelNetwork.of(teacher, devices[0])
    blocks = stack.enter_context(StagedBlocks(teacher, devices))
    return LabelNetwork(workload=teacher, forward=blocks, device=torch.device("cpu"))


def stage_devices(device: str, count: int) -> list[str]:
    """A device for each process: with ``cuda`` GPUs from 0 on, otherwise the same for all."""
    return [f"cuda:{number}" for number in range(count)] if device == "cuda" else [device] * count


def _sizes(teacher: Workload) -> list[int]:
    """Of each block, in bytes, one at a time in memory."""
    found = []
    for block in teacher.space.blocks:
        tensors = block.candidates[0]().state_dict().values()
        found.append(1 + sum(each.nbytes for each in tensors))
    return found


def _stage_main(
    teacher: Workload,
    blocks: range,
    device: str,
    connection: Connection,
    lifeline: tuple[int, int],
) -> None:
    read_end, write_end = lifeline
    os.close(write_end)
    threading.Thread(target=end_with_parent, args=(read_end,), daemon=True).start()
    threads = teacher.recipe.threads
    in_own_thread(threads, lambda: _run(teacher, blocks, device, connection))


def _run(teacher: Workload, blocks: range, device: str, connection: Connection) -> None:
    where = torch.device(device)
    with deterministic_torch(teacher.recipe.threads), kept_heap():
        modules = [teacher.space.blocks[each].candidates[0]().eval().to(where) for each in blocks]
        while True:
            try:
                (number, size, counts, precision), tensors = _receive(connection)
            except EOFError:
                return
            if precision != teacher.recipe.precision:
                teacher = teacher.redefined(recipe=replace(teacher.recipe, precision=precision))
            rest = [each.to(where) for each in tensors]
            state, rest = tuple(rest[:size]), rest[size:]
            try:
                for block, module, count in zip(blocks, modules, counts, strict=True):
                    own, rest = tuple(rest[:count]), rest[count:]
                    state = run_block(teacher, block, module, number, own, state)
                _send(connection, "", tuple(each.cpu() for each in state))
            except Exception as error:  # told to whoever asked
                said = traceback.format_exception_only(error)[-1].strip()
                _send(connection, said or "an error", ())


def _send(connection: Connection, header: Any, tensors: Tensors) -> None:
    encoded = [encode(each) for each in tensors]
    connection.send_bytes(msgpack.packb([header, [entry for entry, _ in encoded]]))
    for _, raw in encoded:
        connection.send_bytes(raw)


def _receive(connection: Connection) -> tuple[Any, Tensors]:
    header, entries = msgpack.unpackb(connection.recv_bytes())
    found = (decode(entry, connection.recv_bytes()) for entry in entries)
    return header, tuple(each for each in found if each is not None)
