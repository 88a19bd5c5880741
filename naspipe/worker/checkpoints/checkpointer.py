"""One stage's part of each checkpoint.

The computing thread captures layers while training waits; another thread writes full blocks.
Memory for captures is reused for the next checkpoint.
"""

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
from naspipe.store.access_log import AccessLogWriter
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
_BYTES_PER_TENSOR = 112  # approximate, in a header


class Part:
    """One stage's part of one checkpoint.

    Layers are added by the computing thread; full blocks may be written by another thread.

    Args:
        directory: the directory of the checkpoint.
        stage: the stage of this part.
        memory: allocates blocks.
        num_parameters: estimates the number of parameters of the layers; called once.
        hand_on: receives each block, which must be written by :meth:`write` and then given back;
            None to do this immediately.
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
        """Add a layer whose tensors follow those of the previous layers in :attr:`captured`."""
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
        """Pass on full blocks, after the last layer."""
        self.captured.end()

    def write(self, block: Block) -> None:
        self._shard.append(block.view, self._room)

    def finish(self) -> dict[str, Any]:
        """Write the rest, and return this part of the checkpoint's manifest."""
        captured = self.captured
        shard = self._shard.finish(self._header, captured.streamed_items, captured.rest)
        return {"shard": shard, **self._said}

    def end(self) -> None:
        """Return the memory, and remove an incomplete file."""
        self._shard.abort()
        self.captured.give_back()

    def _full(self, block: Block) -> None:
        if not self._room:
            # Estimate the header's size by assuming that all layers are like those captured so far.
            names = self._header.names
            num_parameters = sum(name.startswith("param/") for name in names)
            num_tensors = self._num_parameters() * len(names) // max(num_parameters, 1)
            self._room = _LEAST_ROOM + _BYTES_PER_TENSOR * (len(names) + num_tensors)
        self._hand_on(block)

    def _write_at_once(self, block: Block) -> None:
        self.write(block)
        self._memory.give_back(block)


class CheckpointReader(Protocol):
    """Reads the checkpoints of a run in progress."""

    def published(self, stream: int, cut: int) -> None: ...

    def needed(self, stream: int) -> Collection[int]: ...


_MOST_UNWRITTEN = 2
"""Maximum number of complete parts that are not on disk: one being written and one waiting."""


class CheckpointStream(NamedTuple):
    """The data of one stream that a stage needs to write its part of a checkpoint."""

    space: Space
    folder: CheckpointFolder
    store: LayerStore
    restored: Restored | None
    log: AccessLogWriter
    is_written: bool = True
    """Whether updates write the stream's layers; if not, no checkpoint is taken during the run."""

    @property
    def first(self) -> int:
        return self.restored.first if self.restored else 0


@dataclass(slots=True)
class _Job:
    stream: StreamId
    cut: SequenceId
    part: Part
    body: dict[str, Any] = field(default_factory=dict)
    error: Exception | None = None
    """An error raised by the writing thread; reported after all layers are captured."""


class _Step(NamedTuple):
    """A task of the writing thread: write a block or, if it is None, everything that is left."""

    job: _Job
    block: Block | None = None


class Checkpointer:
    """Captures and writes checkpoints; a context manager whose thread ends with it.

    All methods must be called on the computing thread. At most one complete part waits while
    another is being written, so a slow disk delays training instead of filling memory.

    Args:
        stage: the stage of this part.
        generation: the generation of the run, used in file names.
        streams: the streams of the pipeline.
        every: number of subnets of a stream between checkpoints; 0 for none during the run.
        reporter: is notified of each part that is on disk.
        wake: called on the writing thread when a part is on disk.
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
        self.patience = every // 4
        """Number of subnets for which a checkpoint may wait for idle time."""
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
        # This is done even if the stage fails, because other stages may wait for a complete part.
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
        """Return True if a checkpoint is taken before this subnet."""
        return (
            bool(self._every)
            and sequence_id % self._every == 0
            and self.is_new(stream, sequence_id)
        )

    def is_new(self, stream: StreamId, cut: int) -> bool:
        """Return True if a checkpoint at ``cut`` would differ from the stream's initial one."""
        own = self._streams[stream]
        return own.is_written and cut > own.first

    def carry_out(self, command: CaptureLayer | FinishCut) -> None:
        match command:
            case CaptureLayer(layer, versions, cut):
                self.capture(layer, versions, cut)
            case FinishCut(stream, cut):
                self.finish(stream, cut)

    def capture(self, layer: LayerId, versions: tuple[Version, ...], cut: SequenceId) -> None:
        """Copy a layer's present state, or its state at the resume if it was not used since."""
        stream = self._streams[layer.stream]
        job = self._job(layer.stream, cut)
        stored = stream.store.find(layer)
        is_there = stored is not None and stored.version == versions[-1]
        earlier = None if is_there else stream.restored
        earlier_version = earlier.version(layer) if earlier else None
        if stored is None and earlier_version is None:
            stored = stream.store[layer]  # frozen and not yet used
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
        """Write the captured layers, after the log of the preceding accesses is on disk."""
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

    def _logs(self, stream: StreamId) -> Iterator[AccessLogWriter]:
        """Yield the stream's log and the logs of possible teachers, which have no checkpoints."""
        yield self._streams[stream].log
        yield from (each.log for each in self._streams if not each.is_written)

    def _job(self, stream: StreamId, cut: SequenceId) -> _Job:
        found = self._under_way.get((stream, cut))
        if found is None:
            own = self._streams[stream]
            directory = own.folder.working(cut_name(cut), self._generation)
            part = Part(
                directory,
                self._stage,
                self._memory,
                lambda: own.store.num_parameters,
                hand_on=lambda block: self._hand_on(_Step(job, block)),
            )
            found = self._under_way[stream, cut] = job = _Job(stream, cut, part)
        return found

    def report(self) -> None:
        """Report the parts that are now on disk.

        Raises:
            StorageError: if a part could not be written.
        """
        while self._outcomes:
            self._report_next()

    def drain(self) -> None:
        """Wait until everything is written and report it. Errors are those of :meth:`report`."""
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
        except Exception as caught:  # reported by the computing thread
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
