"""Ways to another stage: sockets and rings without another process.

What is sent waits until :meth:`Wire.deliver`. Then ZeroMQ's thread reads the frames that were not
copied, and their tracker is done. The other stage has no memory that could race.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import zmq

from naspipe.config.ids import WorkerId
from naspipe.machine.staging import Staging
from naspipe.wire import shared_rings, tensor_codec, transport
from naspipe.wire.messages import read_message, stage_frames
from naspipe.wire.shared_rings import Ring, Rings, SharedFrames
from naspipe.wire.transport import ZmqTransport
from tests.happens_before.clocks import Clock, ToldDeque
from tests.happens_before.gpu_memory import Span
from tests.happens_before.torch_on_gpu import TorchOnGpu, span_of

HERE, THERE = WorkerId(0), WorkerId(1)
RING_BYTES = 12 << 10
"""Of both rings: so few that they are full now and then."""


def span_of_frame(frame: Any) -> Span:
    """The bytes of what is sent."""
    if not len(frame):
        return Span(0, 0)
    array = np.frombuffer(frame, np.uint8)
    return Span(array.ctypes.data, array.nbytes)


class TrackedFrame:
    """As :class:`zmq.Frame` with a tracker."""

    def __init__(self, frame: Any, track: bool) -> None:
        self.frame = frame
        self.told: Clock | None = None

    def __len__(self) -> int:
        return len(self.frame)


class Wire:
    """Both ends of the way to the other stage.

    Args:
        torch_: told of accesses.
        has_rings: whether the stages share memory.
    """

    def __init__(self, torch_: TorchOnGpu, has_rings: bool) -> None:
        self._torch = torch_
        self._recorder = recorder = torch_.recorder
        self._thread = recorder.actor("ZeroMQ's thread")
        self._there = recorder.actor("other stage")
        self._sent: deque[tuple[list[Any], Clock, Callable[[Any], None]]] = deque()
        self._inbox = ToldDeque(recorder)
        self._rings = Rings(2) if has_rings else None
        self._shared = SharedFrames(THERE, self._rings) if self._rings else None
        if self._rings:
            span = span_of_frame(self._rings._memory)
            torch_.watched.append((span.address, span.address + span.nbytes))
        self.check: Callable[[Any], None] = lambda message: None
        """Given to each message that is sent next; looks at it where it arrives."""

    def open(self, staging: Staging) -> ZmqTransport:
        """This stage's transport, but for its sockets."""
        opened = ZmqTransport.__new__(ZmqTransport)
        opened._worker, opened._staging = HERE, staging
        opened._inbox = SimpleNamespace(getsockopt=self._events, recv_multipart=self._receive)
        opened._outboxes = {THERE: SimpleNamespace(send_multipart=self._send)}
        opened._shared = SharedFrames(HERE, self._rings) if self._rings else None
        return opened

    def __len__(self) -> int:
        return len(self._sent)

    @property
    def num_arrived(self) -> int:
        """Messages that wait for this stage."""
        return len(self._inbox)

    def deliver(self) -> None:
        """Let the other stage have what was sent first."""
        frames, told, check = self._sent.popleft()
        with self._recorder.as_actor(self._thread):
            self._recorder.learn(told)
            copied = [self._read(frame) for frame in frames]
            self._let_go(frames)
            sent = self._recorder.tell()
        with self._recorder.as_actor(self._there):
            self._recorder.learn(sent)
            views: Sequence[Any] = [memoryview(frame) for frame in copied]
            if self._shared is not None:
                views = self._shared.unpack(views)
            check(read_message(views[0], views[1:]))

    def _let_go(self, frames: list[Any]) -> None:
        """Nothing of the frames is held behind this, so their memory is freed by who sent."""
        while frames:
            frame = frames.pop()
            if isinstance(frame, TrackedFrame):
                frame.told, frame.frame = self._recorder.tell(), b""

    def send_here(self, message: Any) -> None:
        """The other stage sends something."""
        with self._recorder.as_actor(self._there):
            frames = [bytes(frame) for frame in stage_frames(message)]
            packed = self._shared.pack(HERE, frames) if self._shared else frames
            self._inbox.append([SimpleNamespace(buffer=memoryview(frame)) for frame in packed])

    def _send(self, frames: Sequence[Any], copy: bool) -> None:
        self._sent.append((list(frames), self._recorder.tell(), self.check))

    def _read(self, frame: Any) -> bytes:
        data = frame.frame if isinstance(frame, TrackedFrame) else frame
        self._torch.touch(span_of_frame(data), False, "sending")
        return bytes(data)

    def _events(self, option: int) -> int:
        return int(zmq.POLLIN) if self._inbox else 0

    def _receive(self, copy: bool) -> Any:
        return self._inbox.popleft()

    @contextmanager
    def installed(self) -> Iterator[None]:
        """ZeroMQ's frames and trackers are these, and host memory that is filled is told of."""
        recorder, torch_, filled = self._recorder, self._torch, tensor_codec._filled

        class Tracker:
            def __init__(self, *frames: TrackedFrame) -> None:
                self._frames = frames

            @property
            def done(self) -> bool:
                told = [frame.told for frame in self._frames]
                for each in told:
                    recorder.learn(each or {})
                return None not in told

        def fill(raw: torch.Tensor, frame: Any) -> torch.Tensor:
            torch_.touch(span_of_frame(frame), False, "copy out of a frame")
            torch_.touch(span_of(raw), True, "copy out of a frame")
            return filled(raw, frame)

        names = SimpleNamespace(
            EVENTS=zmq.EVENTS, POLLIN=zmq.POLLIN, Frame=TrackedFrame, MessageTracker=Tracker
        )
        with (
            patch.object(transport, "zmq", names),
            patch.object(tensor_codec, "_filled", fill),
            patch.object(shared_rings, "LEAST_BYTES", 64),
            patch.object(shared_rings, "_TOTAL_BYTES", RING_BYTES),
            _told_rings(torch_),
        ):
            yield


@contextmanager
def _told_rings(torch_: TorchOnGpu) -> Iterator[None]:
    """A ring's bytes are watched; its counter orders who puts behind who gave back."""
    recorder, told = torch_.recorder, dict[int, Clock]()
    put, give_back = Ring.put, Ring.give_back

    def counter(ring: Ring) -> int:
        return span_of_frame(ring._given.cast("B")).address

    def told_put(ring: Ring, data: Any) -> int | None:
        recorder.learn(told.get(counter(ring), {}))
        position = put(ring, data)
        if position is not None:
            place = position % ring._size
            torch_.touch(span_of_frame(data), False, "copy into a ring")
            into = span_of_frame(ring._data[place : place + len(data)])
            torch_.touch(into, True, "copy into a ring")
        return position

    def told_give_back(ring: Ring, position: int, nbytes: int) -> None:
        give_back(ring, position, nbytes)
        told[counter(ring)] = recorder.tell()

    with patch.object(Ring, "put", told_put), patch.object(Ring, "give_back", told_give_back):
        yield
