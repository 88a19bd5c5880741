"""The desk of one student: which labels it asks for, of whom, and when again."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from naspipe.core.errors import InvariantError
from naspipe.tutoring.audit import is_audited
from naspipe.tutoring.commands import Ask, Command, Conflict, Deliver, Drop, Hire, Release
from naspipe.tutoring.dealing import Deal, slowest_pace_ns
from naspipe.tutoring.events import (
    Answered,
    Event,
    Refused,
    TeacherJoined,
    TeacherLeft,
    Used,
    Wanted,
)
from naspipe.tutoring.label_table import Label, LabelTable
from naspipe.tutoring.settings import DeskSettings, nanoseconds
from naspipe.tutoring.staffing import Staffing
from naspipe.tutoring.teacher_queue import Counts, Request, TeacherQueue


class Desk:
    """Turns events into commands; never reads a clock. One for each stage that computes a loss.

    Labels are asked for from the lowest batch on, ahead of need, up to ``settings.upper``. The
    first right answer wins; what comes after it is compared with it and dropped.

    Args:
        settings: thresholds and deadlines.
        seed: of the run, which settles what is audited.
    """

    def __init__(self, settings: DeskSettings, seed: int) -> None:
        self._settings = settings
        self._seed = seed
        self._table = LabelTable(settings.first_batch)
        self._queues: dict[str, TeacherQueue] = {}
        self._staffing = Staffing(settings)
        self._is_full = False
        """Nothing is asked ahead until no more than ``lower`` labels are left."""
        self._now_ns = 0
        self.counts: dict[str, Counts] = {}
        """By teacher, those that left included."""
        self.audits_missed = 0
        """Audited labels that one teacher alone made, because there was no other in time."""

    @property
    def first_missing(self) -> int | None:
        """The lowest batch that the student wants and that is not held."""
        return self._table.first_missing

    @property
    def num_labels(self) -> int:
        """Labels that are asked for or held, at most ``upper``."""
        return len(self._table)

    @property
    def num_held(self) -> int:
        """Labels that were delivered and not used."""
        return self._table.num_held

    @property
    def teachers(self) -> tuple[str, ...]:
        """Those that are there, by name."""
        return tuple(sorted(self._queues))

    @property
    def deadline_ns(self) -> int | None:
        """When a ``Tick`` is due, if nothing else is told before; None where none is."""
        times = [
            request.deadline_ns
            for queue in self._queues.values()
            for request in queue.requests
            if not request.is_void
        ]
        times += [label.limit_ns for label in self._table if label.limit_ns is not None]
        if self._is_dry:
            hiring = self._staffing.deadline_ns(len(self._queues), self._now_ns)
            times += [] if hiring is None else [hiring]
        return min(times, default=None)

    def handle(self, event: Event) -> list[Command]:
        """What to do now, in this order.

        Raises:
            InvariantError: for events that cannot be: a time before the last one, a batch outside
                of the run, a label that is used before it is delivered or wanted after it was used.
        """
        if event.time_ns < self._now_ns:
            raise InvariantError(f"{event}: expected a time of {self._now_ns} ns or later")
        now_ns = self._now_ns = event.time_ns
        commands: list[Command] = []
        match event:
            case TeacherJoined():
                self._leave(event.teacher)
                self._join(event)
            case TeacherLeft():
                self._leave(event.teacher)
            case Wanted():
                self._check_range(event.batch)
                self._table.want(event.batch)
            case Answered():
                self._take_in(event, commands)
            case Refused():
                self._refuse(event)
            case Used():
                self._table.use(event.batch)
                self._staffing.used()
        late = self._find_late(now_ns)
        self._end_audits(now_ns, commands)
        self._deal(now_ns, commands)
        self._ask_again(late, commands)
        self._staff(now_ns, commands)
        return commands

    def _check_range(self, batch: int) -> None:
        first, last = self._settings.first_batch, self._settings.last_batch
        if batch < first or (last is not None and batch > last):
            raise InvariantError(f"label {batch} is wanted, expected {first} to {last}")

    def _join(self, event: TeacherJoined) -> None:
        pace_ns = nanoseconds(event.seconds)
        counts = self.counts.setdefault(event.teacher, Counts())
        factor, grace_ns = self._settings.deadline_factor, round(self._settings.grace_seconds * 1e9)
        queue = TeacherQueue(event.teacher, [pace_ns], factor, counts, grace_ns)
        self._queues[event.teacher] = queue
        self._staffing.joined(pace_ns, event.time_ns)

    def _leave(self, teacher: str) -> None:
        queue = self._queues.pop(teacher, None)
        if queue is None:
            return
        for request in queue.requests:
            if label := self._table.find(request.batch):
                label.forget(teacher)
        self._staffing.left(self._now_ns)

    def _refuse(self, event: Refused) -> None:
        if queue := self._queues.get(event.teacher):
            queue.refuses(event.batch, event.time_ns)
            if label := self._table.find(event.batch):
                label.forget(event.teacher)

    def _take_in(self, event: Answered, commands: list[Command]) -> None:
        teacher, label = event.teacher, self._table.find(event.batch)
        counts = self.counts.get(teacher, Counts())
        if queue := self._queues.get(teacher):
            queue.answered(event.batch, event.time_ns)
        else:
            counts.answered += 1
        if label is None or teacher not in label.asked_of:
            counts.dropped += 1
            commands.append(Drop(teacher, event.batch))
            return
        label.forget(teacher)
        first = label.answers[0] if label.answers else None
        if first is not None and first[1] != event.digest:
            if not label.is_disputed:
                names, digests = (first[0], teacher), (first[1], event.digest)
                commands.append(Conflict(event.batch, names, digests))
            label.is_disputed, label.limit_ns = True, None
        elif label.is_held or any(teacher == name for name, _ in label.answers):
            counts.dropped += 1
            commands.append(Drop(teacher, event.batch))
        else:
            label.answers.append((teacher, event.digest))
            self._look_at_answers(label, commands)

    def _look_at_answers(self, label: Label, commands: list[Command]) -> None:
        if len(label.answers) < label.copies:
            label.limit_ns = self._now_ns + self._wait_for_another_ns(label)
            return
        if label.copies > 1:
            for name, _ in label.answers:
                self.counts[name].audited += 1
        self._deliver(label, commands)

    def _wait_for_another_ns(self, label: Label) -> int:
        """Time for a full queue of the slowest teacher, until which another one has answered."""
        if not self._queues.keys() - {name for name, _ in label.answers}:
            return 0  # nobody else is there
        wait_ns = slowest_pace_ns(self._queues.values()) * self._settings.requests
        grace_ns = round(self._settings.grace_seconds * 1e9)
        return round(self._settings.deadline_factor * wait_ns) + grace_ns

    def _deliver(self, label: Label, commands: list[Command]) -> None:
        self._table.hold(label)
        for name in sorted(label.late & self._queues.keys()):
            if request := self._queues[name].find(label.batch):
                request.is_void = True
        commands.append(Deliver(label.batch, label.answers[0][0]))

    def _find_late(self, now_ns: int) -> list[tuple[TeacherQueue, Request, bool]]:
        """Requests whose deadline passed, and whether it is their first; others are asked now."""
        found = []
        for name in sorted(self._queues):
            queue = self._queues[name]
            for request in queue.requests:
                if request.is_void or request.deadline_ns > now_ns:
                    continue
                is_first = not request.is_missed
                queue.miss(request, now_ns)
                label = self._table.find(request.batch)
                if label is None or label.is_held or label.is_disputed:
                    request.is_void = True
                    continue
                label.active.discard(name)
                label.late.add(name)
                found.append((queue, request, is_first))
        return found

    def _end_audits(self, now_ns: int, commands: list[Command]) -> None:
        for label in list(self._table):
            if label.limit_ns is not None and label.limit_ns <= now_ns:
                self.audits_missed += 1
                self._deliver(label, commands)

    def _deal(self, now_ns: int, commands: list[Command]) -> None:
        deal = Deal(self._queues, self._settings.requests, now_ns)
        for label in [label for label in self._table if label.open]:
            self._ask(label, deal.place(label), commands)
        passed: list[Label] = []
        for label in self._ahead():
            if not deal.has_room:
                break
            passed.append(label)
            if chosen := deal.place(label):
                # Those before it, which wait for better teachers, take their room now.
                for each in passed:
                    self._table.take_up(each)
                passed = []
                self._ask(label, chosen, commands)

    def _ahead(self) -> Iterator[Label]:
        """Labels from the frontier on that may be taken up."""
        size, settings = len(self._table), self._settings
        if size >= settings.upper:
            self._is_full = True
        elif size <= settings.lower or self._table.is_wanted_beyond:
            self._is_full = False
        if self._is_full:
            return iter(())
        first, room = self._table.frontier, settings.upper - size
        last = first + room if settings.last_batch is None else settings.last_batch + 1
        return (self._new_label(batch) for batch in islice(range(first, last), room))

    def _new_label(self, batch: int) -> Label:
        audited = is_audited(self._seed, batch, self._settings.audit)
        return Label(batch, 2 if audited else 1)

    def _ask(self, label: Label, chosen: list[TeacherQueue], commands: list[Command]) -> None:
        for queue in chosen:
            if len(label.asked_of) >= label.copies:
                queue.counts.repeated += 1
            queue.ask(label.batch, self._now_ns)
            label.asked_of.add(queue.name)
            label.active.add(queue.name)
            commands.append(Ask(queue.name, label.batch))

    def _ask_again(
        self, late: list[tuple[TeacherQueue, Request, bool]], commands: list[Command]
    ) -> None:
        """Ask the same teacher once more where no other took its place: requests may be lost."""
        if not late:
            return
        deal = Deal(self._queues, self._settings.requests, self._now_ns)
        for queue, request, is_first in late:
            label = self._table.find(request.batch)
            if label is None or not label.open or (is_first and deal.candidates(label)):
                continue
            queue.ask_again()
            commands.append(Ask(queue.name, request.batch))

    def _staff(self, now_ns: int, commands: list[Command]) -> None:
        if self._is_dry:
            for queue in self._queues.values():
                queue.is_leaving = False
            if self._staffing.is_hiring(len(self._queues), now_ns):
                commands.append(Hire(1))
        elif spare := self._staffing.spare(self._queues.values(), now_ns):
            spare.is_leaving = True
        for name in sorted(self._queues):
            if self._queues[name].is_leaving and not self._queues[name].load:
                del self._queues[name]
                commands.append(Release(name))

    @property
    def _is_dry(self) -> bool:
        return self._table.first_missing is not None and not self._table.num_held
