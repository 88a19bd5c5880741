"""The state of each label, the open requests of each teacher, and the choice of teachers.

A batch is assigned to the teacher that is expected to finish it first. Example: a fast teacher
takes 1 s and has two open requests, a slow one takes 10 s and has none. The next batch waits for
the fast teacher, which finishes it after 3 s; the eighth batch after it is assigned to the slow
one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from naspipe.config.errors import InvariantError

Answer = tuple[str, str | bytes]
"""A teacher, and the digest of its label."""


@dataclass(slots=True)
class Label:
    """One label, from the time at which it is first considered until it is used."""

    batch: int
    copies: int
    """Number of teachers that must compute it: two if the label is audited."""
    asked_of: set[str] = field(default_factory=set)
    """Every teacher that was ever asked, including those that have left."""
    active: set[str] = field(default_factory=set)
    """Teachers from which an answer is expected in time."""
    late: set[str] = field(default_factory=set)
    """Teachers that missed a deadline and may still answer."""
    answers: list[Answer] = field(default_factory=list)
    """Equal answers in the order of their arrival."""
    is_held: bool = False
    is_disputed: bool = False
    """Answers differ, so the label is never delivered."""
    limit_ns: int | None = None
    """When an audit with one answer stops waiting for the other."""

    @property
    def open(self) -> int:
        """Number of teachers that still have to be asked."""
        if self.is_held or self.is_disputed:
            return 0
        return max(0, self.copies - len(self.active) - len(self.answers))

    def may_be_asked_of(self, teacher: str) -> bool:
        """Return True unless this teacher is computing or has computed the label."""
        busy = teacher in self.active or teacher in self.late
        return not busy and all(teacher != name for name, _ in self.answers)

    def forget(self, teacher: str) -> None:
        self.active.discard(teacher)
        self.late.discard(teacher)


class LabelTable:
    """All labels of a run; only those that have been opened and not yet used occupy memory."""

    def __init__(self, first_batch: int) -> None:
        self._labels: dict[int, Label] = {}
        self._missing: set[int] = set()
        self._below = first_batch
        """All lower batches have been used."""
        self._gone: set[int] = set()
        """Used batches at or above ``_below``."""
        self.frontier = first_batch
        """The lowest batch that was never opened; all lower ones were."""
        self.num_held = 0

    def __len__(self) -> int:
        return len(self._labels)

    def __iter__(self) -> Iterator[Label]:
        """Iterate in the order of the batches, which is the order in which labels are opened."""
        return iter(self._labels.values())

    def find(self, batch: int) -> Label | None:
        return self._labels.get(batch)

    @property
    def first_missing(self) -> int | None:
        """Lowest batch that is wanted and not held."""
        return min(self._missing, default=None)

    @property
    def is_wanted_beyond(self) -> bool:
        return any(batch >= self.frontier for batch in self._missing)

    def want(self, batch: int) -> None:
        """Record that the student requests a label; it may do so several times.

        Raises:
            InvariantError: if the label has been used before.
        """
        if batch < self._below or batch in self._gone:
            raise InvariantError(f"label {batch} is wanted, which was used before")
        label = self._labels.get(batch)
        if label is None or not label.is_held:
            self._missing.add(batch)

    def take_up(self, label: Label) -> None:
        if label.batch != self.frontier:
            raise InvariantError(f"label {label.batch} is taken up, expected {self.frontier}")
        self._labels[label.batch] = label
        self.frontier += 1

    def hold(self, label: Label) -> None:
        label.is_held, label.limit_ns = True, None
        self.num_held += 1
        self._missing.discard(label.batch)

    def use(self, batch: int) -> None:
        """Remove a label.

        Raises:
            InvariantError: if it is not held.
        """
        label = self._labels.get(batch)
        if label is None or not label.is_held:
            raise InvariantError(f"label {batch} was used, which was not delivered")
        del self._labels[batch]
        self.num_held -= 1
        self._gone.add(batch)
        while self._below in self._gone:
            self._gone.remove(self._below)
            self._below += 1


@dataclass(slots=True)
class Counts:
    """Statistics of the requests to one teacher, including earlier connections to it."""

    asked: int = 0
    answered: int = 0
    """Answers that arrived, including dropped ones."""
    repeated: int = 0
    """Of ``asked``: labels that another teacher had been asked for before, without audits."""
    dropped: int = 0
    """Of ``answered``: the label was already present, or this teacher was not asked for it."""
    audited: int = 0
    """Of ``answered``: compared with another teacher's label, and equal."""
    missed: int = 0
    """Deadlines that have passed."""
    refused: int = 0


@dataclass(slots=True)
class Request:
    """One batch that a teacher was asked for and that it has not answered."""

    batch: int
    deadline_ns: int
    is_missed: bool = False
    """True if a deadline has passed, so that the answer is no longer expected in time."""
    is_void: bool = False
    """True if another teacher supplied the label: the request takes no room and has no deadline."""


@dataclass(slots=True)
class TeacherQueue:
    """One teacher, which answers one batch after the other in the order of the requests."""

    name: str
    times_ns: list[int]
    """Times of the last batches, at most three, the newest last; the first value was announced."""
    factor: float
    """A request is late after this multiple of the pace, plus ``grace_ns``."""
    counts: Counts
    grace_ns: int = 0
    requests: list[Request] = field(default_factory=list)
    started_ns: int = 0
    """Start of the first request: when it was sent, or when the previous one was answered."""
    is_doubtful: bool = False
    """True if it was late or refused a batch and has not answered since; others are preferred."""
    is_leaving: bool = False
    refused: set[int] = field(default_factory=set)

    @property
    def pace_ns(self) -> int:
        """Time of one batch: the median of the last three, so that a single stall has no effect."""
        return sorted(self.times_ns)[len(self.times_ns) // 2]

    @property
    def load(self) -> int:
        """Number of requests that take room."""
        return sum(not each.is_void for each in self.requests)

    def find(self, batch: int) -> Request | None:
        return next((each for each in self.requests if each.batch == batch), None)

    def likely_pace_ns(self, now_ns: int) -> int:
        """Return the time of one batch, or the time so far of the first open request if longer."""
        return max(self.pace_ns, now_ns - self.started_ns) if self.requests else self.pace_ns

    def free_at_ns(self, now_ns: int) -> int:
        """Return the time at which all open requests are expected to be finished."""
        if not self.requests:
            return now_ns
        return self.started_ns + self.likely_pace_ns(now_ns) * len(self.requests)

    def ask(self, batch: int, now_ns: int) -> None:
        if not self.requests:
            self.started_ns = now_ns
        begins_ns = max(now_ns, self.started_ns + self.load * self.pace_ns)
        self.requests.append(Request(batch, begins_ns + self._allowed_ns(self.pace_ns)))
        self.counts.asked += 1

    def answered(self, batch: int, now_ns: int) -> None:
        """Record an answer, and remove its request if there is one."""
        self.counts.answered += 1
        if request := self.find(batch):
            self.is_doubtful = False
            self.times_ns = [*self.times_ns[-2:], max(1, now_ns - self.started_ns)]
            self._remove(request, now_ns)

    def refuses(self, batch: int, now_ns: int) -> None:
        """Record that the teacher will not compute this label."""
        self.counts.refused += 1
        self.is_doubtful = True
        self.refused.add(batch)
        if request := self.find(batch):
            self._remove(request, now_ns)

    def miss(self, request: Request, now_ns: int) -> None:
        """Record that a deadline passed, and set the next one, with a growing delay."""
        request.is_missed = True
        self.is_doubtful = True
        self.counts.missed += 1
        request.deadline_ns = now_ns + self._allowed_ns(self.likely_pace_ns(now_ns))

    def _remove(self, request: Request, now_ns: int) -> None:
        place = self.requests.index(request)
        behind = self.requests[place + 1 :]
        # Answers arrive in order, so the requests before it were lost. One whose label is still
        # needed keeps its deadline, at which the label is requested again.
        self.requests = [each for each in self.requests[:place] if not each.is_void] + behind
        self.started_ns = now_ns
        ahead = 0
        for each in behind:
            if not each.is_missed:
                each.deadline_ns = now_ns + ahead * self.pace_ns + self._allowed_ns(self.pace_ns)
            ahead += not each.is_void

    def _allowed_ns(self, pace_ns: int) -> int:
        return round(pace_ns * self.factor) + self.grace_ns


class Deal:
    """One round, in which labels are assigned to the present teachers in batch order.

    A label whose best teacher has no room is planned after the requests of that teacher, and is not
    requested yet. Later labels therefore go only to teachers where they finish no later than there.
    """

    def __init__(self, queues: Mapping[str, TeacherQueue], requests: int, now_ns: int) -> None:
        self._queues = [queues[name] for name in sorted(queues) if not queues[name].is_leaving]
        self._room = {each.name: requests - each.load for each in self._queues}
        self._pace = {each.name: each.likely_pace_ns(now_ns) for each in self._queues}
        self._free = {each.name: each.free_at_ns(now_ns) for each in self._queues}
        self._preferred = [each for each in self._queues if not each.is_doubtful] or self._queues

    @property
    def has_room(self) -> bool:
        """True if a preferred teacher can be asked for one more label."""
        return any(self._room[each.name] > 0 for each in self._preferred)

    def candidates(self, label: Label) -> Sequence[TeacherQueue]:
        """Return the teachers that may be asked for a label; doubtful ones only if needed."""
        for among in (self._preferred, self._queues):
            found = [
                each
                for each in among
                if label.may_be_asked_of(each.name) and label.batch not in each.refused
            ]
            if found:
                return found
        return ()

    def place(self, label: Label) -> list[TeacherQueue]:
        chosen: list[TeacherQueue] = []
        left = list(self.candidates(label))
        for _ in range(min(label.open, len(left))):
            best = min(left, key=lambda q: (self._free[q.name] + self._pace[q.name], q.name))
            left.remove(best)
            self._free[best.name] += self._pace[best.name]
            if self._room[best.name] > 0:
                self._room[best.name] -= 1
                chosen.append(best)
        return chosen
