"""Students and teachers on a virtual clock, with the schedulers that decide for real ones."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace

from naspipe.label_scheduler.balance import balanced
from naspipe.label_scheduler.messages import (
    Answered,
    Ask,
    Command,
    Conflict,
    Deliver,
    Drop,
    Event,
    Hire,
    Release,
    TeacherJoined,
    TeacherLeft,
    Tick,
    Used,
    Wanted,
)
from naspipe.label_scheduler.scheduler import SECOND_NS, LabelScheduler
from naspipe.plan.virtual_driver import VirtualClock
from scripts.paper.tutored_script import (
    Asked,
    Joins,
    Leaves,
    Life,
    Loses,
    Slows,
    Spoils,
    TutoredOutcome,
    TutoredScript,
)


@dataclass(slots=True)
class _Teacher:
    """One that computes what it is asked for, in that order."""

    name: str
    seconds: float
    is_spoilt: bool = False
    waiting: list[tuple[str, int]] = field(default_factory=list)
    """Students and batches; the first is being computed."""
    life: int = 0
    """Counts what interrupts it, so that what it had begun is never told."""


@dataclass(slots=True)
class _Student:
    """One that takes a label for each step."""

    name: str
    scheduler: LabelScheduler
    step: int = 0
    is_busy: bool = False
    held: set[int] = field(default_factory=set)
    teachers: tuple[str, ...] = ()
    due_ns: int | None = None
    """When the clock will wake its scheduler."""


def simulate_tutored(script: TutoredScript) -> TutoredOutcome:
    """Run a script to its end, or to its limit.

    Events of one time are told in the order in which they were caused; what a label and a request
    take on their way is nothing.
    """
    return _Simulation(script).run()


class _Simulation:
    """All of one script."""

    def __init__(self, script: TutoredScript) -> None:
        self._script = script
        self._clock = VirtualClock()
        settings = replace(script.settings, last_batch=script.steps - 1)
        self._students = {
            name: _Student(name, LabelScheduler(settings, script.seed))
            for name in sorted(script.students)
        }
        self._teachers: dict[str, _Teacher] = {}
        self._known: set[str] = set()
        """Teachers that are not missed: there, or silent for a short time."""
        self._joining: set[str] = set()
        """Those of them that nobody was told of."""
        self._spares = list(script.spares)
        self._outcome = TutoredOutcome()

    def run(self) -> TutoredOutcome:
        """Until every student ended, or the limit."""
        outcome, script = self._outcome, self._script
        for name in self._students:
            outcome.used[name], outcome.delivered[name] = [], []
        for life in script.lives:
            self._after(life.at_seconds, lambda life=life: self._live(life))
        for student in self._students.values():
            for batch in range(min(script.window, script.steps)):
                self._after(0.0, lambda s=student, b=batch: self._want(s, b))
        self._after(script.limit_seconds, self._clock.stop)
        self._clock.run()
        for student in self._students.values():
            outcome.counts[student.name] = student.scheduler.counts
            outcome.audits_missed += student.scheduler.audits_missed
        return outcome

    def _after(self, seconds: float, callback: object) -> None:
        self._clock.after(round(seconds * SECOND_NS), callback)  # type: ignore[arg-type]

    @property
    def _now_seconds(self) -> float:
        return self._clock.now_ns / SECOND_NS

    def _live(self, life: Life) -> None:
        """Something happens to a teacher."""
        if isinstance(life, Joins):
            self._teachers[life.teacher] = _Teacher(life.teacher, life.batch_seconds)
            self._known.add(life.teacher)
            if not self._joining:
                self._clock.after(0, self._serve)
            self._joining.add(life.teacher)
            return
        teacher = self._teachers.get(life.teacher)
        if teacher is None:
            return
        match life:
            case Leaves():
                self._interrupt(teacher)
                del self._teachers[life.teacher]
                self._after(life.ttl_seconds, lambda: self._miss(life.teacher))
            case Slows():
                teacher.seconds = life.batch_seconds
            case Spoils():
                teacher.is_spoilt = True
            case Loses():
                self._interrupt(teacher)

    def _miss(self, name: str) -> None:
        """The list of teachers does not name this one any longer, unless it came back."""
        if name not in self._teachers:
            self._known.discard(name)
            self._serve()

    @staticmethod
    def _interrupt(teacher: _Teacher) -> None:
        teacher.life += 1
        teacher.waiting.clear()

    def _serve(self) -> None:
        """Tell each student which teachers it has now, once for all that join at one time."""
        joining, self._joining = self._joining, set()
        open_ = [s for s in self._students.values() if s.step < self._script.steps]
        before = {student.name: student.teachers for student in open_}
        serving = balanced([student.name for student in open_], sorted(self._known), before)
        for student in open_:
            old, student.teachers = student.teachers, serving[student.name]
            for name in sorted(set(old) - set(student.teachers)):
                self._cancel(name, student.name)
                self._tell(student, TeacherLeft(self._clock.now_ns, name))
            for name in student.teachers:
                if name not in old or name in joining:
                    seconds = self._teachers[name].seconds if name in self._teachers else 1.0
                    self._tell(student, TeacherJoined(self._clock.now_ns, name, seconds))

    def _cancel(self, teacher: str, student: str) -> None:
        """What a student has asked for is forgotten, but for what is being computed."""
        if teacher in self._teachers:
            waiting = self._teachers[teacher].waiting
            waiting[1:] = [each for each in waiting[1:] if each[0] != student]

    def _tell(self, student: _Student, event: Event) -> None:
        """One event, what is to be done now, and when to look again."""
        commands = student.scheduler.handle(event)
        for command in commands:
            self._carry_out(student, command)
        scheduler, outcome = student.scheduler, self._outcome
        outcome.most_labels = max(outcome.most_labels, scheduler.num_labels)
        outcome.most_held = max(outcome.most_held, scheduler.num_held)
        self._arm(student)

    def _arm(self, student: _Student) -> None:
        due_ns = student.scheduler.deadline_ns
        if due_ns is None or (student.due_ns is not None and student.due_ns <= due_ns):
            return
        student.due_ns = due_ns
        self._clock.after(max(0, due_ns - self._clock.now_ns), lambda: self._wake(student))

    def _wake(self, student: _Student) -> None:
        if student.due_ns is None or student.due_ns > self._clock.now_ns:
            return  # an earlier time took its place
        student.due_ns = None
        due_ns = student.scheduler.deadline_ns
        if due_ns is not None and due_ns <= self._clock.now_ns:
            self._tell(student, Tick(self._clock.now_ns))
        else:
            self._arm(student)

    def _carry_out(self, student: _Student, command: Command) -> None:
        outcome = self._outcome
        match command:
            case Ask(teacher, batch):
                outcome.asked.append(Asked(self._now_seconds, student.name, teacher, batch))
                if teacher in self._teachers:
                    self._request(self._teachers[teacher], student.name, batch)
            case Deliver(batch, _):
                outcome.delivered[student.name].append(batch)
                student.held.add(batch)
                self._begin()
            case Hire():
                outcome.hired.append(self._now_seconds)
                if self._spares:
                    name, seconds = self._spares.pop(0)
                    joins = Joins(0.0, name, seconds)
                    self._after(self._script.load_seconds, lambda: self._live(joins))
            case Release(teacher):
                outcome.released.append((self._now_seconds, teacher))
                student.teachers = tuple(t for t in student.teachers if t != teacher)
                others = [s for s in self._students.values() if teacher in s.teachers]
                if not others and teacher in self._teachers:
                    del self._teachers[teacher]
                    self._known.discard(teacher)
            case Conflict():
                outcome.conflict = command
                self._clock.stop()
            case Drop():
                pass

    def _request(self, teacher: _Teacher, student: str, batch: int) -> None:
        teacher.waiting.append((student, batch))
        if len(teacher.waiting) == 1:
            self._compute(teacher)

    def _compute(self, teacher: _Teacher) -> None:
        student, batch = teacher.waiting[0]
        seconds = teacher.seconds * self._jitter(f"{teacher.name}/{student}/{batch}")
        life = teacher.life
        self._after(seconds, lambda: self._answer(teacher, life))

    def _answer(self, teacher: _Teacher, life: int) -> None:
        if teacher.life != life:
            return
        name, batch = teacher.waiting.pop(0)
        if teacher.waiting:
            self._compute(teacher)
        digest = f"of {teacher.name}" if teacher.is_spoilt else "right"
        student = self._students[name]
        self._tell(student, Answered(self._clock.now_ns, teacher.name, batch, digest))

    def _want(self, student: _Student, batch: int) -> None:
        self._tell(student, Wanted(self._clock.now_ns, batch))

    def _begin(self) -> None:
        """Steps begin whose labels are there; of joined students, all of them at once."""
        ready = [student for student in self._students.values() if self._is_ready(student)]
        if self._script.is_joined:
            alike = len(ready) == len(self._students) and len({s.step for s in ready}) == 1
            ready = ready if alike else []
        for student in ready:
            student.is_busy = True
            seconds = self._script.step_seconds * self._jitter(f"{student.name}/{student.step}")
            self._after(seconds, lambda s=student: self._end(s))

    def _is_ready(self, student: _Student) -> bool:
        return not student.is_busy and student.step in student.held

    def _end(self, student: _Student) -> None:
        batch, script = student.step, self._script
        student.step, student.is_busy = batch + 1, False
        student.held.remove(batch)
        self._outcome.used[student.name].append(batch)
        self._tell(student, Used(self._clock.now_ns, batch))
        if batch + script.window < script.steps:
            self._want(student, batch + script.window)
        if student.step == script.steps:
            self._outcome.seconds[student.name] = self._now_seconds
            if len(self._outcome.seconds) == len(self._students):
                self._clock.stop()
                return
            self._serve()
        self._begin()

    def _jitter(self, key: str) -> float:
        if not self._script.jitter:
            return 1.0
        text = f"{self._script.seed}/{key}".encode()
        drawn = int.from_bytes(hashlib.blake2b(text, digest_size=4).digest(), "big") / (1 << 32)
        return 1.0 + self._script.jitter * (2.0 * drawn - 1.0)
