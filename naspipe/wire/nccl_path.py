"""Send task inputs between GPUs by NCCL, if every stage has a separate GPU.

**This path has never run on GPUs.** It was written from the documentation of ``torch.distributed``;
the tests run the same code in host memory over gloo, with stages on one machine.

The ZeroMQ header of each input announces it in the order in which its sender passes the tensors to
NCCL, so the receiver posts its receives in the same order. Each ordered pair of stages has a
separate communicator, because two stages that send to each other over a common one would deadlock.
Layers that move to another stage are sent over ZeroMQ.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

import torch
import torch.distributed as dist

from naspipe.config.ids import WorkerId
from naspipe.machine.device_waits import Wait, wait_for
from naspipe.wire.messages import Announcement, InputMessage
from naspipe.wire.tensor_codec import blank, raw_bytes
from naspipe.wire.transport import SplitTransport, ZmqTransport

BACKEND = "nccl"


class NcclTransport(SplitTransport):
    """Sends the tensors of tasks by NCCL.

    Args:
        inner: the stage's sockets.
        pairs: the communicators.
    """

    def __init__(self, inner: ZmqTransport, pairs: Pairs) -> None:
        super().__init__(inner, pairs)
        self._pairs = pairs

    def _send_tensors(
        self, worker: WorkerId, message: InputMessage, tensors: Sequence[torch.Tensor]
    ) -> bool:
        self._inner.announce(worker, message)
        self._pairs.send(worker, tensors)
        return True

    def _receive_tensors(self, message: Announcement) -> tuple[torch.Tensor | None, ...]:
        return self._pairs.receive(message.sender, message.entries)


class Pairs:
    """One communicator for each ordered pair of workers; a context manager.

    Args:
        worker: the ID of this worker.
        num_workers: the number of workers.
        device: this worker's GPU.
        directory: the private directory of the run, with the file through which stages connect.
        timeout_seconds: how long to wait for other workers to connect.
    """

    def __init__(
        self,
        worker: WorkerId,
        num_workers: int,
        device: torch.device,
        directory: Path,
        timeout_seconds: float,
    ) -> None:
        self._worker = worker
        self._num_workers = num_workers
        self._device = device
        self._directory = directory
        self._timeout = timedelta(seconds=timeout_seconds)
        self._groups: dict[tuple[int, int], Any] = {}
        self._sending: deque[tuple[Any, torch.Tensor]] = deque()

    def __enter__(self) -> Self:
        # A file and the loopback interface are used, so that no port is reachable from outside.
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        path = str(self._directory / "pairs")
        store = dist.FileStore(path, self._num_workers)  # type: ignore[attr-defined]
        dist.init_process_group(
            BACKEND,
            store=store,
            rank=self._worker,
            world_size=self._num_workers,
            timeout=self._timeout,
        )
        # Create the communicators of all pairs. A communicator is created by its first transfer,
        # which waits for the other side; during the run, two workers could each wait in a transfer
        # that the other has not reached. Here all workers process the pairs in the same order.
        try:
            probe = self._allocate(1)
            for pair in ordered_pairs(self._num_workers):
                sender, receiver = pair
                group = dist.new_group([*pair], timeout=self._timeout)
                self._groups[pair] = group
                if self._worker == sender:
                    dist.send(probe, receiver, group=group)
                elif self._worker == receiver:
                    dist.recv(probe, sender, group=group)
            if self._device.type == "cuda":
                wait_for(torch.cuda.current_stream(self._device), Wait.OPENING)
        except BaseException:
            dist.destroy_process_group()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self._sending.clear()
        dist.destroy_process_group()

    def send(self, worker: WorkerId, tensors: Sequence[torch.Tensor]) -> None:
        """Start sending after the work queued so far. The tensors must not change afterwards."""
        while self._sending and self._sending[0][0].is_completed():
            self._sending.popleft()
        for tensor in tensors:
            raw = raw_bytes(tensor)
            if len(raw):
                work = dist.isend(raw, worker, group=self._groups[self._worker, worker])
                self._sending.append((work, raw))  # held until it has been sent

    def receive(self, worker: WorkerId, entries: Sequence[Any]) -> tuple[torch.Tensor | None, ...]:
        """Return the tensors that a worker announced; subsequently queued work waits for them."""
        group = self._groups[worker, self._worker]
        tensors: list[torch.Tensor | None] = []
        for entry in entries:
            if entry is None:
                tensors.append(None)
                continue
            tensor, raw = blank(entry, self._allocate)
            if len(raw):
                work = dist.irecv(raw, worker, group=group)
                work.wait()  # type: ignore[union-attr]  # on a GPU, only the compute queue waits
            tensors.append(tensor)
        return tuple(tensors)

    def _allocate(self, nbytes: int) -> torch.Tensor:
        return torch.empty(nbytes, dtype=torch.uint8, device=self._device)


def ordered_pairs(num_workers: int) -> list[tuple[int, int]]:
    """Return all pairs (sender, receiver) of workers, in the order in which all open them."""
    return [(a, b) for a in range(num_workers) for b in range(num_workers) if a != b]
