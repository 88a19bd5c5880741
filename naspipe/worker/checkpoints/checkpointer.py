"""One stage's part of each checkpoint: captured by the compute thread, written beside it."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import Queue
from threading import Semaphore
from typing import Any, NamedTuple, Protocol, Self

from naspipe.config.errors import InvariantError, StorageError
from naspipe.config.ids import LayerId, SequenceId, StageId, StreamId, Version, alone_in
from naspipe.config.space import Space
from naspipe.engine.commands import CaptureLayer, FinishCut
from naspipe.store.checkpoints import CheckpointFolder, cut_name
from naspipe.store.files import cannot_write
from naspipe.store.shards import Header, ShardWriter
from naspipe.wire.ports import Reporter
from naspipe.worker.checkpoints.capturing import Capturer
from naspipe.worker.checkpoints.restored import (
    Block,
    Captured,
    CaptureMemory,
    LayerSnapshot,
    Restored,
    layer_key,
)
from naspipe.worker.layers.layer_store import LayerStore

_LEAST_ROOM = 1 << 16
_BYTES_PER_TENSOR = 112
"""Of a header, about."""


class Part:
    """Layers are added by the thread that computes; what is full is written by another one.

    Args:
        directory: of the checkpoint.
        stage: whose part.
        memory: where its blocks are from.
        num_parameters: how many the layers to come may have; a guess, asked for once.
        hand_on: told of each block that is to be written by :meth:`write` and then given back;
            None to do that at once.
    """

    def __init__(
        self,
        directory: Path,
        stage: StageId,
        memory: CaptureMemory,
        num_parameters: Callable[[], int],
        hand_on: Callable[[Block], None] | None = None,
    ) -> None:
        self.captured = Captured(memory, self._full)
        self._memory = memory
        self._hand_on = hand_on or self._write_at_once
        self._num_parameters = num_parameters
        self._shard = ShardWriter(directory / f"stage-{stage}.safetensors")
        self._header = Header()
        self._said: dict[str, Any] = {"versions": {}, "history": {}, "scalars": {}, "strides": {}}
        self._room = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.end()

    def add(self, key: str, snapshot: LayerSnapshot) -> None:
        """A layer whose tensors are in :attr:`captured`, behind those that were added before.

        Raises:
            InvariantError: when it is there already.
        """
        versions, tensors, scalars, strides = snapshot
        if key in self._said["versions"]:
            raise InvariantError(f"layer {key} was captured twice for one checkpoint")
        for listing, crc in tensors:
            self._header.add(f"{key}/", listing, crc)
        self._said["versions"][key] = int(versions[-1])
        if len(versions) > 1:
            self._said["history"][key] = list(map(int, versions))
        for kind, values in (("scalars", scalars), ("strides", strides)):
            self._said[kind] |= {f"{key}/{name}": value for name, value in values.items()}

    def close(self) -> None:
        """No layer comes any more: hand on what is full."""
        self.captured.end()

    def write(self, block: Block) -> None:
        """Write what is full.

        Raises:
            OSError: when it cannot be written.
        """
        self._shard.append(block.view, self._room)

    def finish(self) -> dict[str, Any]:
        """Write the rest; returns the part of the checkpoint's manifest.

        Raises:
            OSError: when it cannot be written.
        """
        captured = self.captured
        shard = self._shard.finish(self._header, captured.streamed_items, captured.rest)
        return {"shard": shard, **self._said}

    def end(self) -> None:
        """Give the memory back, and leave no file that is not whole."""
        self._shard.abort()
        self.captured.give_back()

    def _full(self, block: Block) -> None:
        if not self._room:
            self._room = self._guess()
        self._hand_on(block)

    def _guess(self) -> int:
        """Room for the header, were all layers as those that are captured."""
        names = self._header.names
        num_parameters = sum(name.startswith("param/") for name in names)
        num_tensors = self._num_parameters() * len(names) // max(num_parameters, 1)
        return _LEAST_ROOM + _BYTES_PER_TENSOR * (len(names) + num_tensors)

    def _write_at_once(self, block: Block) -> None:
        self.write(block)
        self._memory.give_back(block)


class Log(Protocol):
    """A log that a checkpoint relies on."""

    def flush(self) -> None:
        """Hand every record to the operating system."""
        ...

    def fileno(self) -> int:
        """The open file, to put it on disk."""
        ...


class CheckpointReader(Protocol):
    """Somebody who reads the checkpoints of a run that goes on."""

    def published(self, stream: int, cut: int) -> None:
        """There is one at this cut."""
        ...

    def needed(self, stream: int) -> Collection[int]:
        """Of which cuts the checkpoints still have to be read."""
        ...


_MOST_UNWRITTEN = 2
"""Parts that are captured whole and not on disk: one is written, one waits."""


class CheckpointStream(NamedTuple):
    """What a stage needs of one stream to write its part."""

    space: Space
    folder: CheckpointFolder
    store: LayerStore
    restored: Restored | None
    log: Log
    is_written: bool = True
    """Otherwise nothing changes, and no checkpoint is taken on the way."""

    @property
    def first(self) -> int:
        """The first subnet that is trained in this life of the run."""
        return self.restored.first if self.restored else 0


@dataclass(slots=True)
class _Job:
    stream: StreamId
    cut: SequenceId
    part: Part
    body: dict[str, Any] = field(default_factory=dict)
    error: Exception | None = None
    """Of the thread that writes; told when all is captured."""


class _Step(NamedTuple):
    """What the thread that writes does next: a block, or without one all that is left."""

    job: _Job
    block: Block | None = None


class Checkpointer:
    """Captures and writes; a context manager whose thread ends with it.

    All methods are for the thread that computes. What is captured is written meanwhile, and its
    memory is used again. At most one part that is captured whole waits while another is written:
    a disk that is too slow for the wish holds the training up instead of filling memory.

    Args:
        stage: whose part.
        generation: the run's, in the name of what is written.
        streams: of the pipeline.
        every: subnets of a stream from one checkpoint to the next; 0 for none on the way.
        reporter: told of each part that is on disk.
        wake: called on the writing thread when one is.
    """

    def __init__(
        self,
        stage: StageId,
        generation: int,
        streams: Sequence[CheckpointStream],
        every: int,
        reporter: Reporter,
        wake: Callable[[], None],
    ) -> None:
        self._stage = stage
        self._generation = generation
        self._streams = tuple(streams)
        self._every = every
        self._reporter = reporter
        self._wake = wake
        self._memory = CaptureMemory()
        self._capturer = Capturer()
        self._under_way: dict[tuple[StreamId, SequenceId], _Job] = {}
        self._steps: Queue[_Step | None] = Queue()
        self._unwritten = Semaphore(_MOST_UNWRITTEN)
        self._outcomes: deque[_Job] = deque()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        # Also when the stage fails: what is captured whole may be the part that others wait for.
        self._end()
        for job in self._under_way.values():
            job.part.end()
        while self._outcomes and self._outcomes[0].error is None:
            self._report_next()

    def _end(self) -> None:
        if self._thread is not None:
            self._steps.put(None)
            self._thread.join()
            self._thread = None

    def is_due(self, stream: StreamId, sequence_id: int) -> bool:
        """Whether a checkpoint takes its place before this subnet."""
        return (
            bool(self._every)
            and sequence_id % self._every == 0
            and self.is_new(stream, sequence_id)
        )

    def is_new(self, stream: StreamId, cut: int) -> bool:
        """Whether a checkpoint there would hold more than the one that the stream began with."""
        own = self._streams[stream]
        return own.is_written and cut > own.first

    @property
    def patience(self) -> int:
        """For how many subnets a checkpoint may wait for idle time: it should not be old."""
        return self._every // 4

    def carry_out(self, command: CaptureLayer | FinishCut) -> None:
        """Do what the controller commands; see :meth:`capture` and :meth:`finish`."""
        match command:
            case CaptureLayer(layer, versions, cut):
                self.capture(layer, versions, cut)
            case FinishCut(stream, cut):
                self.finish(stream, cut)

    def capture(self, layer: LayerId, versions: tuple[Version, ...], cut: SequenceId) -> None:
        """Keep a layer as it is now; one that was not used since the resume, as it was then."""
        stream = self._streams[layer.stream]
        job = self._job(layer.stream, cut)
        stored = stream.store.find(layer)
        is_there = stored is not None and stored.version == versions[-1]
        earlier = None if is_there else stream.restored
        earlier_version = earlier.version(layer) if earlier else None
        if stored is None and earlier_version is None:
            stored = stream.store[layer]  # frozen, and its first user has not come to it yet
        if stored is not None and stored.version == versions[-1]:
            snapshot = self._capturer.capture(stored, versions, job.part.captured)
        elif earlier is not None and earlier_version == versions[-1]:
            snapshot = earlier.capture(layer, versions, job.part.captured)
        else:
            raise InvariantError(
                f"layer {layer}: version {versions[-1]} belongs to the checkpoint at {cut}, "
                f"found {stored.version if stored else earlier_version}"
            )
        job.part.add(layer_key(stream.space, alone_in(layer)), snapshot)

    def finish(self, stream: StreamId, cut: SequenceId) -> None:
        """Write what was captured, and put the log of what led to it on disk first."""
        for log in self._logs(stream):
            log.flush()
        job = self._job(stream, cut)
        del self._under_way[stream, cut]
        job.part.close()
        self._unwritten.acquire()
        self._hand_on(_Step(job))

    def _hand_on(self, step: _Step) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="naspipe-checkpoint")
            self._thread.start()
        self._steps.put(step)

    def _logs(self, stream: StreamId) -> Iterator[Log]:
        """The stream's own, and those of whoever may have taught it: they have no checkpoints."""
        yield self._streams[stream].log
        yield from (each.log for each in self._streams if not each.is_written)

    def _job(self, stream: StreamId, cut: SequenceId) -> _Job:
        found = self._under_way.get((stream, cut))
        if found is None:
            own = self._streams[stream]
            directory = own.folder.working(cut_name(cut), self._generation)
            part = Part(
                directory, self._stage, self._memory, lambda: own.store.num_parameters,
                hand_on=lambda block: self._hand_on(_Step(job, block)),
            )  # fmt: skip
            found = self._under_way[stream, cut] = job = _Job(stream, cut, part)
        return found

    def report(self) -> None:
        """Tell the launcher of the parts that are on disk by now.

        Raises:
            StorageError: when one could not be written.
        """
        while self._outcomes:
            self._report_next()

    def drain(self) -> None:
        """Wait until everything is written, and tell the launcher.

        Raises:
            StorageError: when a part could not be written.
        """
        self._end()
        self.report()

    def _report_next(self) -> None:
        job = self._outcomes.popleft()
        error = job.error
        if isinstance(error, OSError):
            folder = self._streams[job.stream].folder.path
            said = cannot_write(Path(error.filename or folder), error)
            raise StorageError(
                f"checkpoint at subnet {job.cut}: {said}; the checkpoints before it are still good"
            ) from error
        if error is not None:
            raise error
        self._reporter.report("part", {"stream": job.stream, "cut": job.cut, **job.body})

    def _work(self) -> None:
        while (step := self._steps.get()) is not None:
            self._write(*step)

    def _write(self, job: _Job, block: Block | None) -> None:
        try:
            if job.error is None:
                self._finish(job) if block is None else job.part.write(block)
        except Exception as caught:  # told by the thread that computes
            job.error = caught
        if block is not None:
            self._memory.give_back(block)
            return
        job.part.end()
        self._outcomes.append(job)
        self._unwritten.release()
        self._wake()

    def _finish(self, job: _Job) -> None:
        for log in self._logs(job.stream):
            os.fsync(log.fileno())
        job.body = job.part.finish()
