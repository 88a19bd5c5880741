"""Decides which labels are requested, from which teacher, and when they are requested again.

The scheduler takes events and returns commands, as the controller of a stage does; it never reads a
clock. Labels are requested before they are needed. Some are computed by two teachers, so that a
wrong teacher is detected (:func:`is_audited`). More teachers are hired while the student has to
wait for labels, and released when the others are fast enough without them (:class:`Staffing`).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import islice

from naspipe.config.errors import ConfigError, InvariantError
from naspipe.label_scheduler.label_table import (
    Counts,
    Deal,
    Label,
    LabelTable,
    Request,
    TeacherQueue,
)
from naspipe.label_scheduler.messages import (
    Answered,
    Ask,
    Command,
    Conflict,
    Deliver,
    Drop,
    Event,
    Hire,
    Refused,
    Release,
    TeacherJoined,
    TeacherLeft,
    Used,
    Wanted,
)

SECOND_NS = 1_000_000_000

ROUNDS = 2
"""Batches of a new teacher until its effect is visible: its first one, and one of all others."""
MARGIN = 1.1
"""A teacher is released if the others are this factor faster than the student."""


def is_audited(seed: int, batch: int, one_in: int) -> bool:
    """Return True for about one in ``one_in`` batches, the same in every run; 0 audits none."""
    if one_in == 0:
        return False
    digest = hashlib.blake2b(f"{seed}/audit/{batch}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % one_in == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSettings:
    """Thresholds, deadlines and bounds. None of them changes a bit of a label.

    Raises:
        ConfigError: if a value is out of range.
    """

    upper: int = 64
    """Maximum number of labels requested or held together before requests ahead of need stop."""
    lower: int = 48
    """Requests ahead of need resume when this number of labels is left; less than ``upper``."""
    deadline_factor: float = 3.0
    """An answer is late after this multiple of its teacher's measured time; more than 1."""
    grace_seconds: float = 0.0
    """Added to each deadline, for a machine that is busy with other work."""
    audit: int = 0
    """One in this number of labels is computed by two teachers; 0 for none."""
    most: int = 64
    """Maximum number of teachers."""
    requests: int = 2
    """Maximum number of open requests per teacher, so that it need not wait for the next one."""
    load_seconds: float = 60.0
    """Time allowed for a hired teacher to join, after which another one is hired."""
    release_seconds: float = 300.0
    """A teacher that was not needed for this long is released; 0 for never."""
    first_batch: int = 0
    """Lowest batch; more than 0 in a run that continues from a checkpoint."""
    last_batch: int | None = None
    """Highest batch, if known."""

    def __post_init__(self) -> None:
        last = math.inf if self.last_batch is None else self.last_batch
        for name, is_allowed, expected in (
            ("upper", self.upper >= 1, "1 or more"),
            ("lower", 0 <= self.lower < self.upper, f"0 or more and less than upper={self.upper}"),
            ("deadline_factor", 1 < self.deadline_factor < math.inf, "more than 1"),
            ("grace_seconds", 0 <= self.grace_seconds < math.inf, "0 or more"),
            ("audit", self.audit >= 0, "0 or more"),
            ("most", self.most >= 1, "1 or more"),
            ("requests", self.requests >= 1, "1 or more"),
            ("load_seconds", 0 <= self.load_seconds < math.inf, "0 or more"),
            ("release_seconds", 0 <= self.release_seconds < math.inf, "0 or more"),
            ("first_batch", self.first_batch >= 0, "0 or more"),
            ("last_batch", last >= self.first_batch - 1, f"{self.first_batch - 1} or more"),
        ):
            if not is_allowed:
                found = getattr(self, name)
                raise ConfigError(f"teachers: expected {name} to be {expected}, found {found}")


class Staffing:
    """Hires a teacher when the student lacks labels, and waits for the effect before the next one.

    A teacher is not needed if the others alone are faster than the student was during a period in
    which it never had to wait for labels.
    """

    def __init__(self, settings: SchedulerSettings) -> None:
        self._settings = settings
        self._hold_ns = 0
        """Time until which the effect of the last change is awaited."""
        self._since_ns = 0
        self._used = 0
        """Number of labels used since ``_since_ns``."""

    def joined(self, pace_ns: int, now_ns: int) -> None:
        """Record that a teacher joined; its effect is visible when it has computed some batches."""
        self._hold_ns = now_ns + ROUNDS * pace_ns
        self._restart(now_ns)

    def left(self, now_ns: int) -> None:
        """Record that a teacher left, so that no effect is awaited."""
        self._hold_ns = now_ns
        self._restart(now_ns)

    def used(self) -> None:
        self._used += 1

    def is_hiring(self, num_teachers: int, now_ns: int) -> bool:
        """Return True, and count it, if a student that lacks labels gets one more teacher now."""
        self._restart(now_ns)
        if now_ns < self._hold_ns or num_teachers >= self._settings.most:
            return False
        self._hold_ns = now_ns + max(round(self._settings.load_seconds * 1e9), 1)
        return True

    def deadline_ns(self, num_teachers: int, now_ns: int) -> int | None:
        """Return when a student that lacks labels may get one more teacher."""
        is_full = num_teachers >= self._settings.most
        return None if is_full or self._hold_ns <= now_ns else self._hold_ns

    def spare(self, queues: Collection[TeacherQueue], now_ns: int) -> TeacherQueue | None:
        """Return the slowest teacher if it was not needed for long, and restart the measurement."""
        elapsed_ns = now_ns - self._since_ns
        release_ns = round(self._settings.release_seconds * 1e9)
        if not release_ns or elapsed_ns < release_ns or self._used < self._settings.upper:
            return None
        rate = self._used / (elapsed_ns / 1e9)
        self._restart(now_ns)
        staying = [each for each in queues if not each.is_leaving]
        if len(staying) < 2:
            return None
        slowest = max(staying, key=lambda each: (each.pace_ns, each.name))
        others = sum(
            1e9 / each.pace_ns for each in staying if each is not slowest and not each.is_doubtful
        )
        return slowest if others >= MARGIN * rate else None

    def _restart(self, now_ns: int) -> None:
        self._since_ns, self._used = now_ns, 0


class LabelScheduler:
    """Turns events into commands; there is one for each stage that computes a loss.

    Labels are requested in the order of their batches, ahead of need, up to ``settings.upper``. The
    first right answer is used; later ones are compared with it and dropped. ``seed`` is that of the
    run, and determines which labels are audited.
    """

    def __init__(self, settings: SchedulerSettings, seed: int) -> None:
        self._settings = settings
        self._seed = seed
        self._table = LabelTable(settings.first_batch)
        self._queues: dict[str, TeacherQueue] = {}
        self._staffing = Staffing(settings)
        self._is_full = False
        """True until no more than ``lower`` labels are left: nothing is requested ahead of need."""
        self._now_ns = 0
        self._grace_ns = round(settings.grace_seconds * 1e9)
        self.counts: dict[str, Counts] = {}
        """Counts by teacher, including those that have left."""
        self.audits_missed = 0
        """Audited labels that only one teacher computed, because no other was available in time."""

    @property
    def first_missing(self) -> int | None:
        """Lowest batch that the student wants and that is not held."""
        return self._table.first_missing

    @property
    def num_labels(self) -> int:
        """Number of labels that are requested or held, at most ``upper``."""
        return len(self._table)

    @property
    def num_held(self) -> int:
        """Number of labels that were delivered and not used."""
        return self._table.num_held

    @property
    def teachers(self) -> tuple[str, ...]:
        return tuple(sorted(self._queues))

    @property
    def deadline_ns(self) -> int | None:
        """When a ``Tick`` is due if no other event occurs before; None if none is due."""
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
        """Return the commands to execute now, in this order.

        Raises:
            InvariantError: for impossible events: a time before the last one, a batch outside of
                the run, a label that is used before it is delivered or wanted after it was used.
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
                first, last = self._settings.first_batch, self._settings.last_batch
                if event.batch < first or (last is not None and event.batch > last):
                    raise InvariantError(
                        f"label {event.batch} is wanted, expected {first} to {last}"
                    )
                self._table.want(event.batch)
            case Answered():
                self._take_answer(event, commands)
            case Refused():
                if queue := self._queues.get(event.teacher):
                    queue.refuses(event.batch, now_ns)
                    if label := self._table.find(event.batch):
                        label.forget(event.teacher)
            case Used():
                self._table.use(event.batch)
                self._staffing.used()
        late = self._find_late()
        for label in list(self._table):
            if label.limit_ns is not None and label.limit_ns <= now_ns:
                self.audits_missed += 1
                self._deliver(label, commands)
        self._deal(commands)
        self._ask_again(late, commands)
        self._staff(commands)
        return commands

    def _join(self, event: TeacherJoined) -> None:
        pace_ns = max(1, round(event.seconds * SECOND_NS))
        counts = self.counts.setdefault(event.teacher, Counts())
        factor = self._settings.deadline_factor
        queue = TeacherQueue(event.teacher, [pace_ns], factor, counts, self._grace_ns)
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

    def _take_answer(self, event: Answered, commands: list[Command]) -> None:
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
            if len(label.answers) < label.copies:
                label.limit_ns = self._now_ns + self._wait_for_another_ns(label)
                return
            if label.copies > 1:
                for name, _ in label.answers:
                    self.counts[name].audited += 1
            self._deliver(label, commands)

    def _wait_for_another_ns(self, label: Label) -> int:
        """Return how long an audit waits: the time of a full queue of the slowest teacher."""
        if not self._queues.keys() - {name for name, _ in label.answers}:
            return 0  # there is no other teacher
        in_time = (each.pace_ns for each in self._queues.values() if not each.is_doubtful)
        wait_ns = max(in_time, default=0) * self._settings.requests
        return round(self._settings.deadline_factor * wait_ns) + self._grace_ns

    def _deliver(self, label: Label, commands: list[Command]) -> None:
        self._table.hold(label)
        for name in sorted(label.late & self._queues.keys()):
            if request := self._queues[name].find(label.batch):
                request.is_void = True
        commands.append(Deliver(label.batch, label.answers[0][0]))

    def _find_late(self) -> list[tuple[TeacherQueue, Request, bool]]:
        """Return the requests whose deadline has passed, and whether it is their first one."""
        found = []
        for name in sorted(self._queues):
            queue = self._queues[name]
            for request in queue.requests:
                if request.is_void or request.deadline_ns > self._now_ns:
                    continue
                is_first = not request.is_missed
                queue.miss(request, self._now_ns)
                label = self._table.find(request.batch)
                if label is None or label.is_held or label.is_disputed:
                    request.is_void = True
                    continue
                label.active.discard(name)
                label.late.add(name)
                found.append((queue, request, is_first))
        return found

    def _deal(self, commands: list[Command]) -> None:
        deal = Deal(self._queues, self._settings.requests, self._now_ns)
        for label in [label for label in self._table if label.open]:
            self._ask(label, deal.place(label), commands)
        passed: list[Label] = []
        for label in self._ahead():
            if not deal.has_room:
                break
            passed.append(label)
            if chosen := deal.place(label):
                # The skipped labels, which wait for better teachers, take their room now.
                for each in passed:
                    self._table.take_up(each)
                passed = []
                self._ask(label, chosen, commands)

    def _ahead(self) -> Iterator[Label]:
        """Return labels from the frontier on that may be opened."""
        size, settings = len(self._table), self._settings
        if size >= settings.upper:
            self._is_full = True
        elif size <= settings.lower or self._table.is_wanted_beyond:
            self._is_full = False
        if self._is_full:
            return iter(())
        first, room = self._table.frontier, settings.upper - size
        last = first + room if settings.last_batch is None else settings.last_batch + 1
        return (
            Label(batch, 2 if is_audited(self._seed, batch, settings.audit) else 1)
            for batch in islice(range(first, last), room)
        )

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
        """Repeat the request to the same teacher if no other took over: it may have been lost."""
        if not late:
            return
        deal = Deal(self._queues, self._settings.requests, self._now_ns)
        for queue, request, is_first in late:
            label = self._table.find(request.batch)
            if label is None or not label.open or (is_first and deal.candidates(label)):
                continue
            queue.counts.asked += 1
            queue.counts.repeated += 1
            commands.append(Ask(queue.name, request.batch))

    def _staff(self, commands: list[Command]) -> None:
        if self._is_dry:
            for queue in self._queues.values():
                queue.is_leaving = False
            if self._staffing.is_hiring(len(self._queues), self._now_ns):
                commands.append(Hire(1))
        elif spare := self._staffing.spare(self._queues.values(), self._now_ns):
            spare.is_leaving = True
        for name in sorted(self._queues):
            if self._queues[name].is_leaving and not self._queues[name].load:
                del self._queues[name]
                commands.append(Release(name))

    @property
    def _is_dry(self) -> bool:
        return self._table.first_missing is not None and not self._table.num_held
