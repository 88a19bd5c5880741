"""What one teacher has under way, when that is expected, and when it is late."""

from __future__ import annotations

from dataclasses import dataclass, field


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
