"""A student's thread that asks teachers for labels, as its desk says."""

from __future__ import annotations

import queue
import threading
import time

import torch

from naspipe.config.errors import ConfigError, NaspipeError, TransportError
from naspipe.label_scheduler.balance import Doubt
from naspipe.label_scheduler.messages import (
    Answered,
    Ask,
    Conflict,
    Deliver,
    Drop,
    Event,
    Hire,
    Refused,
    Release,
    TeacherJoined,
    TeacherLeft,
    Tick,
    Used,
    Wanted,
)
from naspipe.runtime.jobs.ports import SourceSeat
from naspipe.runtime.labels.applicants import Asking
from naspipe.runtime.labels.label_network import label_digest
from naspipe.runtime.labels.label_patience import LabelPatience
from naspipe.runtime.labels.label_record import LabelRecord
from naspipe.runtime.labels.stage_errands import StageErrands
from naspipe.runtime.labels.teacher_lines import TeacherLines
from naspipe.runtime.labels.teacher_roll import RollEvents, TeacherRoll
from naspipe.runtime.registries.registry_watch import RegistryWatch
from naspipe.runtime.wire.wakeup import Wakeup

_MOST_WAIT_MS = 1000


class LabelReader:
    """Talks to every teacher that is introduced; delivers labels by batch.

    Args:
        asking: how.
        seat: of the source.
        watch: tells of teachers' cards.
    """

    def __init__(self, asking: Asking, seat: SourceSeat, watch: RegistryWatch) -> None:
        self._desk, self._seat, self._watch = asking.desk, seat, watch
        self._place = {batch: index for index, batch in enumerate(seat.batches)}
        """The desk counts the batches of this student only."""
        self._events: queue.SimpleQueue[tuple[type[Wanted] | type[Used], int]] = queue.SimpleQueue()
        self._delivered: queue.SimpleQueue[tuple[int, torch.Tensor]] = queue.SimpleQueue()
        self._answers: dict[tuple[str, int], torch.Tensor] = {}
        self._newest: torch.Tensor | None = None
        """The answer that was taken last, unless its teacher had sent another one before."""
        self._patience = LabelPatience(asking.timeout_seconds, time.monotonic())
        self._doubt = Doubt()
        self._failure: NaspipeError | None = None
        self._is_closing = False
        self._wakeup = Wakeup()
        self._lines = TeacherLines(self._wakeup.fileno, watch.fileno)
        self._record = LabelRecord(seat.directory, seat.share[0], seat.generation)
        self._errands = StageErrands(asking.fields, seat.wake, self._wakeup.set)
        told = RollEvents(
            joined=lambda name, seconds: self._handle(TeacherJoined(_now(), name, seconds)),
            left=lambda name: self._handle(TeacherLeft(_now(), name)),
            answered=self._take_answer,
            refused=lambda name, number: self._handle(Refused(_now(), name, self._place[number])),
            note=seat.note,
        )
        self._roll = TeacherRoll(asking, seat.share, self._lines, self._errands, self._record, told)
        self._thread = threading.Thread(target=self._run, name="naspipe-labels", daemon=True)
        self._thread.start()

    def want(self, batch: int) -> None:
        """The stage will need a label."""
        self._tell(Wanted, batch)

    def take(self) -> list[tuple[int, torch.Tensor]]:
        """Labels that have come, each once; makes batches that the reader needs.

        Raises:
            ConfigError: when two teachers disagree, or when there has been none for too long.
        """
        if self._failure is not None:
            raise self._failure
        self._errands.run()
        return [self._delivered.get() for _ in range(self._delivered.qsize())]

    def used(self, batch: int) -> None:
        """The stage has taken a label."""
        self._tell(Used, batch)

    def close(self) -> None:
        """End the thread and its sockets."""
        self._is_closing = True
        self._wakeup.set()
        self._thread.join()
        self._wakeup.__exit__()
        self._watch.close()
        self._record.close(self._desk.counts, self._desk.audits_missed, self._patience.seconds)

    def _tell(self, kind: type[Wanted] | type[Used], batch: int) -> None:
        self._events.put((kind, self._place[batch]))
        self._wakeup.set()

    def _run(self) -> None:
        try:
            while not self._is_closing and self._failure is None:
                self._turn()
        except NaspipeError as error:
            self._failure = error
        except Exception as error:  # the stage has to hear of it, whatever it is
            self._failure = TransportError(f"labels: {type(error).__name__}: {error}")
        finally:
            self._lines.end()
            self._seat.wake()

    def _turn(self) -> None:
        due, wait_ms = self._desk.deadline_ns, _MOST_WAIT_MS
        if due is not None:
            wait_ms = min(wait_ms, max(0, -(-(due - _now()) // 1_000_000)))
        ready = self._lines.wait(wait_ms)
        if self._wakeup.fileno() in ready:
            self._wakeup.clear()
        while not self._events.empty():
            kind, place = self._events.get()
            self._handle(kind(_now(), place))
        if self._watch.fileno() in ready and (cards := self._watch.take()) is not None:
            self._roll.look_at(cards)
        self._errands.settle()
        self._roll.hear()
        if due is not None and due <= _now():
            self._handle(Tick(_now()))
        missing = self._desk.first_missing
        batch = None if missing is None else self._seat.batches[missing]
        teachers, why = len(self._desk.teachers), self._roll.last_no
        if said := self._patience.tell(time.monotonic(), batch, teachers, why):
            self._seat.note(said)

    def _take_answer(self, name: str, number: int, label: torch.Tensor) -> None:
        place = self._place[number]
        self._newest = None if (name, place) in self._answers else label
        if self._newest is not None:
            self._answers[name, place] = label
            self._doubt.answered(number, name)
        self._handle(Answered(_now(), name, place, label_digest(label)))

    def _handle(self, event: Event) -> None:
        for command in self._desk.handle(event):
            match command:
                case Ask(teacher, place):
                    self._roll.request(teacher, self._seat.batches[place])
                case Deliver(place, teacher):
                    self._deliver(place, teacher)
                case Drop(teacher, place):
                    if self._newest is not None:  # otherwise an earlier one is still looked at
                        self._answers.pop((teacher, place), None)
                        self._doubt.dropped(self._seat.batches[place], teacher)
                case Conflict(place, teachers, _):
                    raise self._conflict(place, teachers)
                case Hire(count):
                    self._record.event("hire", "", count=count)
                    self._watch.hire(count)
                case Release(teacher):
                    self._record.event("released", teacher)
                    self._watch.release(teacher)

    def _deliver(self, place: int, teacher: str) -> None:
        batch = self._seat.batches[place]
        makers = sorted(name for name, of in self._answers if of == place)
        self._doubt.delivered(batch, makers)
        self._delivered.put((batch, self._answers[teacher, place]))
        for name in makers:
            del self._answers[name, place]
        self._seat.wake()

    def _conflict(self, place: int, teachers: tuple[str, str]) -> ConfigError:
        """Two teachers do not agree, and earlier labels of one of them may be wrong, too."""
        batch = self._seat.batches[place]
        first = min((batch, *(self._doubt.since(name, batch) for name in teachers)))
        self._record.doubt(first)
        return ConfigError(
            f"labels: expected the same bits of batch {batch} from all teachers, found others from "
            f"{' and '.join(teachers)}; labels from batch {first} on are in doubt; leave one "
            f"teacher out and resume the run, which then begins before them"
        )


def _now() -> int:
    return time.monotonic_ns()
