"""Queues that stand in for CUDA's, and do nothing before somebody waits for it.

As :class:`torch.cuda.Stream` and :class:`torch.cuda.Event`, as far as naspipe uses them. What is
launched waits in its queue. It runs when a wait needs it, with what it waits for itself in other
queues, or when :meth:`Queue.go_on` says so. So a copy that nobody waits for comes too late.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from tests.happens_before.clocks import Clock, Recorder

_NAMES = ("compute queue", "load queue", "save queue")
"""In the order in which a device opens them."""


class Span(NamedTuple):
    """Bytes in memory."""

    address: int
    nbytes: int


class DelayedGpu:
    """One GPU's queues, and which of them each thread uses.

    Args:
        recorder: told of all that is launched.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.queues: list[Queue] = []
        self._current: dict[int, Queue] = {}
        self._default = self.open_queue()

    def open_queue(self, *device: Any) -> Queue:
        """As ``torch.cuda.Stream(device)``."""
        name = _NAMES[len(self.queues)] if len(self.queues) < len(_NAMES) else "another queue"
        queue = Queue(self, name)
        self.queues.append(queue)
        return queue

    def make_event(self, **options: Any) -> Event:
        """As ``torch.cuda.Event()``."""
        return Event(self.recorder)

    def current_queue(self, *device: Any) -> Queue:
        """The running thread's: as in CUDA one for all, until it chooses another."""
        return self._current.get(self.recorder.acting, self._default)

    @contextmanager
    def using(self, queue: Queue) -> Iterator[None]:
        """As ``torch.cuda.stream(queue)``."""
        thread, before = self.recorder.acting, self.current_queue()
        self._current[thread] = queue
        try:
            yield
        finally:
            self._current[thread] = before

    def finish(self) -> None:
        """Run all that was launched."""
        for queue in self.queues:
            queue.run_up_to(queue.launched)


class Queue:
    """Work in order; made by :meth:`DelayedGpu.open_queue`."""

    def __init__(self, gpu: DelayedGpu, name: str) -> None:
        self._gpu = gpu
        self._recorder = gpu.recorder
        self._actor = gpu.recorder.actor(name)
        self._waiting: deque[Callable[[], None]] = deque()
        self.launched = self.done = 0
        """How much, since the beginning."""

    def launch(
        self, what: str, reads: Sequence[Span], writes: Sequence[Span], run: Callable[[], None]
    ) -> None:
        """Queue work that touches memory."""
        self._recorder.learn(self._recorder.tell(), self._actor)
        for spans, is_write in ((reads, False), (writes, True)):
            for address, nbytes in spans:
                self._recorder.access(self._actor, address, address + nbytes, is_write, what)
        self._add(run)

    def _add(self, run: Callable[[], None]) -> None:
        self._waiting.append(run)
        self.launched += 1

    def wait_event(self, event: Event) -> None:
        """What comes later waits for an event."""
        self._recorder.learn(self._recorder.tell(), self._actor)
        self._recorder.learn(event.told, self._actor)
        self._add(event.reach)

    def wait_stream(self, other: Queue) -> None:
        """What comes later waits for all that is in another queue now."""
        event = Event(self._recorder)
        event.record(other)
        self.wait_event(event)

    def synchronize(self) -> None:
        """The running thread waits for all that was launched."""
        event = Event(self._recorder)
        event.record(self)
        event.synchronize()

    def tell(self) -> Clock:
        """What is known to who waits for all that was launched."""
        self._recorder.learn(self._recorder.tell(), self._actor)
        return self._recorder.tell(self._actor)

    def go_on(self) -> None:
        """Run the next piece of work, if there is one."""
        self.run_up_to(min(self.done + 1, self.launched))

    def run_up_to(self, position: int) -> None:
        """Run until so much is done."""
        while self.done < position:
            run = self._waiting.popleft()
            self.done += 1
            run()


class Event:
    """A point in a queue; one that was not recorded is over, as in CUDA."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._queue: Queue | None = None
        self._position = 0
        self.told: Clock = {}

    def record(self, queue: Queue) -> None:
        """Be behind all that was launched."""
        self.told = queue.tell()
        self._queue, self._position = queue, queue.launched

    def reach(self) -> None:
        """Have all before it run."""
        if self._queue is not None:
            self._queue.run_up_to(self._position)

    def query(self) -> bool:
        """Whether it is over; the running thread knows it then."""
        is_over = self._queue is None or self._queue.done >= self._position
        if is_over:
            self._recorder.learn(self.told)
        return is_over

    def synchronize(self) -> None:
        """The running thread waits for it."""
        self.reach()
        self._recorder.learn(self.told)

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds; no time goes by here."""
        return 0.0
