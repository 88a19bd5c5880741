"""Where each label is, what each teacher has under way, and who gets the next batch.

A batch goes to the teacher that is expected to have it first. Example: a fast teacher takes 1 s and
has two batches under way, a slow one takes 10 s and has none. The next batch waits for the fast
teacher, which has it in 3 s; the eighth batch from there on goes to the slow one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from naspipe.config.errors import InvariantError

Answer = tuple[str, str | bytes]
"""A teacher, and the digest of what it made."""


@dataclass(slots=True)
class Label:
    """One label from the time it is taken up until it is used."""

    batch: int
    copies: int
    """Teachers that have to make it: two for an audited one."""
    asked_of: set[str] = field(default_factory=set)
    """Every teacher that was ever asked, those that left included."""
    active: set[str] = field(default_factory=set)
    """Teachers that are counted on for an answer."""
    late: set[str] = field(default_factory=set)
    """Teachers that missed a deadline and may still answer."""
    answers: list[Answer] = field(default_factory=list)
    """Those that agree, the first first."""
    is_held: bool = False
    is_disputed: bool = False
    """Answers differ: never delivered."""
    limit_ns: int | None = None
    """When an audit that has one answer waits no longer."""

    @property
    def open(self) -> int:
        """Teachers that have to be asked yet."""
        if self.is_held or self.is_disputed:
            return 0
        return max(0, self.copies - len(self.active) - len(self.answers))

    def may_be_asked_of(self, teacher: str) -> bool:
        """Whether this teacher neither has it under way nor made it."""
        busy = teacher in self.active or teacher in self.late
        return not busy and all(teacher != name for name, _ in self.answers)

    def forget(self, teacher: str) -> None:
        """Nothing more is under way there."""
        self.active.discard(teacher)
        self.late.discard(teacher)


class LabelTable:
    """All labels of a run, in memory only those between taken up and used.

    Args:
        first_batch: lower ones count as gone.
    """

    def __init__(self, first_batch: int) -> None:
        self._labels: dict[int, Label] = {}
        self._missing: set[int] = set()
        self._below = first_batch
        self._gone: set[int] = set()
        """At or above ``_below``, below which all are gone."""
        self.frontier = first_batch
        """The lowest batch that was never taken up; all lower ones were."""
        self.num_held = 0

    def __len__(self) -> int:
        """Labels that are asked for, to be asked for, or held."""
        return len(self._labels)

    def __iter__(self) -> Iterator[Label]:
        """Labels in the order of their batches, in which they are taken up."""
        return iter(self._labels.values())

    def find(self, batch: int) -> Label | None:
        """The label, between taken up and used."""
        return self._labels.get(batch)

    @property
    def first_missing(self) -> int | None:
        """The lowest batch that is wanted and not held."""
        return min(self._missing, default=None)

    @property
    def is_wanted_beyond(self) -> bool:
        """Whether a label is wanted that was not taken up."""
        return any(batch >= self.frontier for batch in self._missing)

    def want(self, batch: int) -> None:
        """The student asks for a label, once or several times.

        Raises:
            InvariantError: for one that it used already.
        """
        if self._is_gone(batch):
            raise InvariantError(f"label {batch} is wanted, which was used before")
        label = self._labels.get(batch)
        if label is None or not label.is_held:
            self._missing.add(batch)

    def take_up(self, label: Label) -> None:
        """Enter the label of the frontier."""
        if label.batch != self.frontier:
            raise InvariantError(f"label {label.batch} is taken up, expected {self.frontier}")
        self._labels[label.batch] = label
        self.frontier += 1

    def hold(self, label: Label) -> None:
        """A label is there."""
        label.is_held, label.limit_ns = True, None
        self.num_held += 1
        self._missing.discard(label.batch)

    def use(self, batch: int) -> None:
        """A label is gone.

        Raises:
            InvariantError: for one that is not held.
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

    def _is_gone(self, batch: int) -> bool:
        return batch < self._below or batch in self._gone


@dataclass(slots=True)
class Counts:
    """What became of one teacher's requests, over all its lives."""

    asked: int = 0
    answered: int = 0
    """Answers that came, dropped ones included."""
    repeated: int = 0
    """Of ``asked``: labels that somebody had been asked for before, audits left out."""
    dropped: int = 0
    """Of ``answered``: the label was there already, or this teacher was not asked for it."""
    audited: int = 0
    """Of ``answered``: compared with what another teacher made, and alike."""
    missed: int = 0
    """Deadlines that passed."""
    refused: int = 0


@dataclass(slots=True)
class Request:
    """One batch that a teacher was asked for and has not answered."""

    batch: int
    deadline_ns: int
    is_missed: bool = False
    """A deadline passed: it is not counted on any longer."""
    is_void: bool = False
    """Besides, its label came from another teacher: it takes no room, and has no deadline."""


@dataclass(slots=True)
class TeacherQueue:
    """One teacher, which answers in the order in which it is asked, one batch after the other."""

    name: str
    times_ns: list[int]
    """Of one batch, at most three, the newest last: first what the teacher said, then measured."""
    factor: float
    counts: Counts
    grace_ns: int = 0
    """That an answer may take longer."""
    requests: list[Request] = field(default_factory=list)
    started_ns: int = 0
    """When the first of ``requests`` was begun: asked for, or the one before answered."""
    is_doubtful: bool = False
    """It is late or refused something, and answered nothing since: others are asked first."""
    is_leaving: bool = False
    refused: set[int] = field(default_factory=set)
    """Batches that it will not make."""

    @property
    def pace_ns(self) -> int:
        """Time of one batch: the median of the last three, so that one stall changes nothing."""
        return sorted(self.times_ns)[len(self.times_ns) // 2]

    @property
    def load(self) -> int:
        """Requests that take room."""
        return sum(not each.is_void for each in self.requests)

    def find(self, batch: int) -> Request | None:
        """The request for a batch, if it is under way."""
        return next((each for each in self.requests if each.batch == batch), None)

    def likely_pace_ns(self, now_ns: int) -> int:
        """Time of one batch, in view of how long the first one under way has taken already."""
        return max(self.pace_ns, now_ns - self.started_ns) if self.requests else self.pace_ns

    def free_at_ns(self, now_ns: int) -> int:
        """When all that is under way is expected."""
        if not self.requests:
            return now_ns
        return self.started_ns + self.likely_pace_ns(now_ns) * len(self.requests)

    def ask(self, batch: int, now_ns: int) -> None:
        """Enter one more request."""
        if not self.requests:
            self.started_ns = now_ns
        ahead, patience_ns = self.load, self._patience_ns
        begins_ns = max(now_ns, self.started_ns + ahead * self.pace_ns)
        self.requests.append(Request(batch, begins_ns + patience_ns))
        self.counts.asked += 1

    def ask_again(self) -> None:
        """Enter that the same was asked once more: the first time may be lost."""
        self.counts.asked += 1
        self.counts.repeated += 1

    def answered(self, batch: int, now_ns: int) -> Request | None:
        """Take in an answer; returns its request, if there was one, which is over now."""
        self.counts.answered += 1
        request = self.find(batch)
        if request is None:
            return None
        self.is_doubtful = False
        self.times_ns = [*self.times_ns[-2:], max(1, now_ns - self.started_ns)]
        self._remove(request, now_ns)
        return request

    def refuses(self, batch: int, now_ns: int) -> None:
        """Take in that it will not make this one."""
        self.counts.refused += 1
        self.is_doubtful = True
        self.refused.add(batch)
        if request := self.find(batch):
            self._remove(request, now_ns)

    def miss(self, request: Request, now_ns: int) -> None:
        """A deadline of a request passed; the next one is later each time."""
        request.is_missed = True
        self.is_doubtful = True
        self.counts.missed += 1
        request.deadline_ns = (
            now_ns + round(self.factor * self.likely_pace_ns(now_ns)) + self.grace_ns
        )

    def _remove(self, request: Request, now_ns: int) -> None:
        place = self.requests.index(request)
        behind = self.requests[place + 1 :]
        # Answers come in order, so those before it were lost; what somebody waits for keeps its
        # deadline, at which it is asked for again.
        self.requests = [each for each in self.requests[:place] if not each.is_void] + behind
        self.started_ns = now_ns
        ahead = 0
        for each in behind:
            if not each.is_missed:
                each.deadline_ns = now_ns + ahead * self.pace_ns + self._patience_ns
            ahead += not each.is_void

    @property
    def _patience_ns(self) -> int:
        return round(self.pace_ns * self.factor) + self.grace_ns


class Deal:
    """One round: labels are placed in the order of their batches, on teachers as they are now.

    A label whose best teacher has no room is planned behind what that one has, and is not asked
    for yet. So later labels go where they do not come later than there.

    Args:
        queues: of teachers that may be asked, by name.
        requests: that a teacher may have under way.
        now_ns: the time.
    """

    def __init__(self, queues: Mapping[str, TeacherQueue], requests: int, now_ns: int) -> None:
        self._queues = [queues[name] for name in sorted(queues) if not queues[name].is_leaving]
        self._room = {each.name: requests - each.load for each in self._queues}
        self._pace = {each.name: each.likely_pace_ns(now_ns) for each in self._queues}
        self._free = {each.name: each.free_at_ns(now_ns) for each in self._queues}
        trusted = [each for each in self._queues if not each.is_doubtful]
        self._first = trusted or self._queues

    @property
    def has_room(self) -> bool:
        """Whether a teacher that comes first can be asked for one more."""
        return any(self._room[each.name] > 0 for each in self._first)

    def candidates(self, label: Label) -> Sequence[TeacherQueue]:
        """Who may be asked for a label; doubtful teachers only where there is no other."""
        for among in (self._first, self._queues):
            found = [each for each in among if _may_make(each, label)]
            if found:
                return found
        return ()

    def place(self, label: Label) -> list[TeacherQueue]:
        """The teachers to ask for a label now."""
        chosen: list[TeacherQueue] = []
        left = list(self.candidates(label))
        for _ in range(min(label.open, len(left))):
            best = min(left, key=lambda each: (self._finish(each), each.name))
            left.remove(best)
            self._free[best.name] = self._finish(best)
            if self._room[best.name] > 0:
                self._room[best.name] -= 1
                chosen.append(best)
        return chosen

    def _finish(self, queue: TeacherQueue) -> int:
        return self._free[queue.name] + self._pace[queue.name]


def _may_make(queue: TeacherQueue, label: Label) -> bool:
    return label.may_be_asked_of(queue.name) and label.batch not in queue.refused


def slowest_pace_ns(queues: Iterable[TeacherQueue]) -> int:
    """Time of one batch on the slowest teacher that is in time; 0 without any."""
    return max((each.pace_ns for each in queues if not each.is_doubtful), default=0)
