"""Whatever a scheduler is told, in any order: what always holds."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from naspipe.label_scheduler.messages import (
    Answered,
    Ask,
    Conflict,
    Deliver,
    Drop,
    Refused,
    TeacherJoined,
    TeacherLeft,
    Tick,
    Used,
    Wanted,
)
from naspipe.label_scheduler.scheduler import LabelScheduler, SchedulerSettings, is_audited

TEACHERS = ("a", "b", "c", "d")
WAYS = ("join", "leave", "answer", "answer", "answer", "want", "want", "use", "use", "tick",
        "refuse", "stray")  # fmt: skip


class Checked:
    """A scheduler and, beside it, what was asked of whom; every command is looked at."""

    def __init__(self, how: SchedulerSettings, seed: int) -> None:
        self.how, self.seed = how, seed
        self.scheduler = LabelScheduler(how, seed)
        self.now = 0
        self.here: dict[str, int] = {}
        """Teachers, and the least time that a batch was ever seen to take them."""
        self.under_way: dict[str, dict[int, int]] = {}
        """By teacher: batches, and when they were asked for last."""
        self.started: dict[str, int] = {}
        """By teacher: when it began with the first batch under way."""
        self.held: set[int] = set()
        self.used: set[int] = set()
        self.wanted: set[int] = set()
        self.asked: Counter[int] = Counter()
        self.reasons: Counter[int] = Counter()
        """By batch, what allows one more to be asked: a deadline, one that left or refused."""
        self.excused: set[tuple[str, int]] = set()
        """Teachers and batches that were late, for which another was asked."""

    def tell(self, event) -> None:
        if isinstance(event, TeacherJoined | TeacherLeft):
            lost = self.under_way.pop(event.teacher, {})
            self.here.pop(event.teacher, None)
            # Another took the place of one that was late.
            self.reasons.update(b for b in lost if (event.teacher, b) not in self.excused)
            self.excused -= {(event.teacher, batch) for batch in lost}
        if isinstance(event, TeacherJoined):
            self.here[event.teacher] = round(event.seconds * 1e9)
            self.under_way[event.teacher] = {}
        if isinstance(event, Refused):
            self.reasons[event.batch] += (event.teacher, event.batch) not in self.excused
            self.excused.discard((event.teacher, event.batch))
        was_asked = isinstance(event, Answered) and event.batch in self.under_way.get(
            event.teacher, {}
        )
        if isinstance(event, Answered | Refused):
            if was_asked:
                took = self.now - self.started[event.teacher]
                self.here[event.teacher] = min(self.here[event.teacher], max(1, took))
            if self.under_way.get(event.teacher, {}).pop(event.batch, None) is not None:
                self.started[event.teacher] = self.now
        commands = self.scheduler.handle(event)
        assert not any(isinstance(each, Conflict) for each in commands)
        if isinstance(event, Answered):
            ours = [
                each
                for each in commands
                if isinstance(each, Deliver | Drop) and each.batch == event.batch
            ]
            assert len(ours) <= 1
            copies = self.copies(event.batch)
            assert ours or (was_asked and copies == 2 and event.batch not in self.held)
        for command in commands:
            self.look_at(command)
        room = self.how.upper
        assert self.scheduler.num_labels <= room and len(self.held) == self.scheduler.num_held
        busy = {batch for some in self.under_way.values() for batch in some}
        assert len((busy | self.held) - self.used) <= room
        assert self.scheduler.first_missing == min(
            self.wanted - self.held - self.used, default=None
        )
        assert self.scheduler.deadline_ns is None or self.scheduler.deadline_ns > self.now

    def copies(self, batch: int) -> int:
        return 2 if is_audited(self.seed, batch, self.how.audit) else 1

    def look_at(self, command) -> None:
        match command:
            case Deliver(batch, _):
                assert batch not in self.held | self.used
                self.held.add(batch)
            case Ask(teacher, batch):
                assert teacher in self.here and batch not in self.held | self.used
                last = self.how.last_batch
                assert self.how.first_batch <= batch and (last is None or batch <= last)
                mine = self.under_way[teacher]
                if batch in mine:
                    assert self.is_late(teacher, batch), "the same is asked again and is not late"
                    return
                if self.asked[batch] >= self.copies(batch) + self.reasons[batch]:
                    late = [
                        (name, batch)
                        for name, some in sorted(self.under_way.items())
                        if batch in some and self.is_late(name, batch)
                    ]
                    excuse = next((each for each in late if each not in self.excused), None)
                    assert excuse is not None, "asked again although nobody is late"
                    self.excused.add(excuse)
                    self.reasons[batch] += 1
                self.asked[batch] += 1
                if not mine:
                    self.started[teacher] = self.now
                mine[batch] = self.now

    def is_late(self, teacher: str, batch: int) -> bool:
        waited = self.now - self.under_way[teacher][batch]
        return waited >= round(self.how.deadline_factor * self.here[teacher])


def carry(draw, told: Checked, way: str) -> None:
    """One random event."""
    told.now += draw(st.sampled_from((0, 10**8, 10**9, 7 * 10**9)))
    now, name = told.now, draw(st.sampled_from(TEACHERS))
    busy = sorted((t, b) for t, some in told.under_way.items() for b in some)
    if way == "join":
        told.tell(TeacherJoined(now, name, draw(st.sampled_from((0.5, 1.0, 5.0)))))
    elif way == "leave":
        told.tell(TeacherLeft(now, name))
    elif way in ("answer", "refuse") and busy:
        teacher, batch = draw(st.sampled_from(busy))
        if way == "refuse":
            told.tell(Refused(now, teacher, batch))
        else:
            told.tell(Answered(now, teacher, batch, "same"))
    elif way == "want":
        batch = draw(st.integers(0, 12)) + max(told.used, default=0)
        last = told.how.last_batch
        if batch not in told.used and (last is None or batch <= last):
            told.wanted.add(batch)
            told.tell(Wanted(now, batch))
    elif way == "use" and told.held:
        batch = draw(st.sampled_from(sorted(told.held)))
        told.held.remove(batch)
        told.used.add(batch)
        told.tell(Used(now, batch))
    elif way == "stray":
        told.tell(Answered(now, name, draw(st.integers(0, 5)) + 1000, "same"))
    elif told.scheduler.deadline_ns is not None:
        told.now = max(now, told.scheduler.deadline_ns)
        told.tell(Tick(told.now))


@settings(max_examples=150)
@given(st.data())
def test_any_order_of_events(data) -> None:
    draw = data.draw
    upper = draw(st.integers(1, 9))
    how = SchedulerSettings(
        upper=upper,
        lower=draw(st.integers(0, upper - 1)),
        requests=draw(st.integers(1, 3)),
        audit=draw(st.sampled_from((0, 1, 2))),
        last_batch=draw(st.sampled_from((None, 8))),
        load_seconds=3.0,
        release_seconds=0.0,
    )
    told = Checked(how, draw(st.integers(0, 3)))
    for way in draw(st.lists(st.sampled_from(WAYS), max_size=60)):
        carry(draw, told, way)
    finish(told)


def finish(told: Checked) -> None:
    """One that joins in the end and answers makes every label that is wanted, or all to the end."""
    for name in TEACHERS:
        told.tell(TeacherLeft(told.now, name))
    told.tell(TeacherJoined(told.now, "last", 1.0))
    last = told.how.last_batch
    goal = last if last is not None else max(told.wanted | told.held | told.used, default=0)
    for batch in range(goal + 1):
        if batch in told.used:
            continue
        told.wanted.add(batch)
        told.tell(Wanted(told.now, batch))
        for _ in range(50):
            if batch in told.held:
                break
            told.now += 10**9
            mine = told.under_way["last"]
            if mine:
                told.tell(Answered(told.now, "last", next(iter(mine)), "same"))
            else:
                assert told.scheduler.deadline_ns is not None, "nothing is under way or due"
                told.now = max(told.now, told.scheduler.deadline_ns)
                told.tell(Tick(told.now))
        assert batch in told.held, f"label {batch} never comes"
        told.held.remove(batch)
        told.used.add(batch)
        told.tell(Used(told.now, batch))


@given(st.data())
def test_the_same_events_give_the_same_commands(data) -> None:
    told = Checked(SchedulerSettings(upper=6, lower=3, audit=2, release_seconds=5.0), 1)
    events, commands = [], []
    handle = told.scheduler.handle

    def note(event):
        events.append(event)
        commands.append(handle(event))
        return commands[-1]

    told.scheduler.handle = note
    for way in data.draw(st.lists(st.sampled_from(WAYS), max_size=40)):
        carry(data.draw, told, way)
    again = LabelScheduler(told.how, 1)
    assert [again.handle(event) for event in events] == commands
