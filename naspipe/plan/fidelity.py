"""Compares a real run with the simulation of the same stream, partitions and order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import fmean, median
from typing import NamedTuple

from naspipe.config.ids import Access, AccessKind, LayerId, SequenceId, StageId, StreamId
from naspipe.config.steps import ONE_PASS, Steps
from naspipe.engine.events import TaskKind
from naspipe.plan.costs import CostTable, LayerCost
from naspipe.plan.virtual_costs import TableCosts
from naspipe.store.metrics import bubble_ratio, makespan_seconds

WAIT = 20
"""Pauses vary, mainly with what is sent or received in between: up to ten times the median (0.5 ms)
was observed, while a wait for another stage lasts for a block or more."""


class LoggedTask(NamedTuple):
    """A task as logged, without the stage's other tasks between its blocks."""

    stream: StreamId
    sequence_id: SequenceId
    kind: TaskKind


class Span(NamedTuple):
    """Begin and end of a task, in nanoseconds."""

    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Fidelity:
    """How close a simulation is to the run that it imitates."""

    tasks: int
    """Number of forwards and backwards of all subnets and stages."""
    order_agreement: float
    """Share of consecutive tasks of a stage that begin in the same order in both logs."""
    start_deviation: float
    """Median distance between the real and the simulated start of a task, relative to the real
    makespan."""
    real_bubble: float
    simulated_bubble: float
    real_seconds: float
    simulated_seconds: float

    @property
    def bubble_error(self) -> float:
        return self.simulated_bubble - self.real_bubble

    def as_dict(self) -> dict[str, float]:
        return {**asdict(self), "bubble_error": self.bubble_error}


def compare_to_real(
    real: Sequence[Access], simulated: Sequence[Access], num_stages: int
) -> Fidelity:
    """Compare two logs of one stream, task by task, relative to the first access of each log."""
    spans, twins = task_spans(real), task_spans(simulated)
    makespan_ns = makespan_seconds(real) * 1e9
    zero, twin_zero = (
        min(span.start_ns for stage in log.values() for span in stage.values())
        for log in (spans, twins)
    )
    deviations = [
        abs((span.start_ns - zero) - (twins[stage][work].start_ns - twin_zero))
        for stage, tasks in spans.items()
        for work, span in tasks.items()
    ]
    agreeing = pairs = 0
    for stage, tasks in spans.items():
        order = sorted(tasks, key=lambda work: (tasks[work].start_ns, work.sequence_id))
        for one, other in pairwise(order):
            pairs += 1
            agreeing += twins[stage][one].start_ns <= twins[stage][other].start_ns
    return Fidelity(
        tasks=len(deviations),
        order_agreement=agreeing / pairs if pairs else 1.0,
        start_deviation=median(deviations) / makespan_ns,
        real_bubble=bubble_ratio(real, num_stages),
        simulated_bubble=bubble_ratio(simulated, num_stages),
        real_seconds=makespan_seconds(real),
        simulated_seconds=makespan_seconds(simulated),
    )


def task_spans(accesses: Iterable[Access]) -> dict[StageId, dict[LoggedTask, Span]]:
    """Return, by stage, the time span of each forward and backward, without WRITEs."""
    found: dict[StageId, dict[LoggedTask, Span]] = defaultdict(dict)
    for access in accesses:
        if access.kind is AccessKind.WRITE:
            continue
        kind = TaskKind(access.kind.value)
        work = LoggedTask(access.layer.stream, access.sequence_id, kind)
        known = found[access.stage].get(work, Span(access.start_ns, access.end_ns))
        found[access.stage][work] = Span(
            min(known.start_ns, access.start_ns), max(known.end_ns, access.end_ns)
        )
    return dict(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedCosts(TableCosts):
    """The duration of every single access of a recorded run.

    An access that is not in the log takes the median time of its layer. Copies take no time of
    their own, because the log contains only how long a stage waited for them.
    """

    durations_ns: Mapping[tuple[LayerId, AccessKind, int], int]

    def access_ns(self, layer: LayerId, kind: AccessKind, sequence_id: int = -1) -> int:
        known = self.durations_ns.get((layer, kind, sequence_id))
        return TableCosts.access_ns(self, layer, kind) if known is None else known

    def add_ns(self, layer: LayerId, sequence_id: int) -> int:
        known = self.durations_ns.get((layer, AccessKind.WRITE, sequence_id))
        return TableCosts.add_ns(self, layer, sequence_id) if known is None else known


def logged_costs(accesses: Sequence[Access], steps: Steps = ONE_PASS) -> LoggedCosts:
    """Return the costs found in a log whose passes form these steps."""
    durations: dict[tuple[LayerId, AccessKind, int], int] = {
        (access.layer, access.kind, access.sequence_id): access.end_ns - access.start_ns
        for access in accesses
    }
    pause = pause_ns(accesses)
    return LoggedCosts(
        durations_ns=durations,
        table=logged_table(accesses, steps),
        link_ns=max(0, link_ns(accesses) - pause),
        pause_ns=pause,
    )


def logged_table(accesses: Sequence[Access], steps: Steps) -> CostTable:
    """Return the median costs of every layer in a log; only WRITEs that end a step count."""
    last: dict[tuple[LayerId, int], int] = {}
    for access in accesses:
        use = (access.layer, steps.step(access.sequence_id))
        last[use] = max(access.sequence_id, last.get(use, -1))
    samples: dict[tuple[int, int], dict[AccessKind, list[int]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for access in accesses:
        step = steps.step(access.sequence_id)
        if access.kind is AccessKind.WRITE and last[access.layer, step] != access.sequence_id:
            continue
        place = (access.layer.block, access.layer.candidate)
        samples[place][access.kind].append(access.end_ns - access.start_ns)
    return CostTable(
        {
            place: LayerCost(*(int(median(kinds.get(kind, [0]))) for kind in AccessKind))
            for place, kinds in samples.items()
        }
    )


def pause_ns(accesses: Iterable[Access]) -> int:
    """Return the mean time between two accesses of a stage, if the next one was ready.

    A gap of more than :data:`WAIT` times the median within a task is taken to be a wait.
    """
    gaps = [
        (after.start_ns - before.end_ns, before, after)
        for stage in _by_stage(accesses).values()
        for before, after in pairwise(stage)
    ]
    inner = [gap for gap, before, after in gaps if before.sequence_id == after.sequence_id]
    limit_ns = WAIT * median(inner) if inner else 0
    pauses = [gap for gap, _, _ in gaps if gap <= limit_ns]
    return int(fmean(pauses)) if pauses else 0


def link_ns(accesses: Sequence[Access]) -> int:
    """Return the median time from the end of a backward to the start of the next, if that waited.

    Backwards wait for nothing else. The result includes the receiver's own pause.
    """
    stages = _by_stage(accesses)
    free_since: dict[tuple[StageId, int], int] = {}
    for number, stage in stages.items():
        for before, after in pairwise(stage):
            free_since[number, after.start_ns] = before.end_ns
    delays = []
    spans = task_spans(accesses)
    for sender, tasks in spans.items():
        for work, span in tasks.items():
            receiver = StageId(sender - 1)
            arrived = spans.get(receiver, {}).get(work)
            if arrived is None or work.kind is TaskKind.FORWARD:
                continue
            since = free_since.get((receiver, arrived.start_ns))
            if since is not None and since < span.end_ns <= arrived.start_ns:
                delays.append(arrived.start_ns - span.end_ns)
    return int(median(delays)) if delays else 0


def _by_stage(accesses: Iterable[Access]) -> dict[StageId, list[Access]]:
    stages: dict[StageId, list[Access]] = defaultdict(list)
    for access in accesses:
        stages[access.stage].append(access)
    for stage in stages.values():
        stage.sort(key=lambda access: (access.start_ns, access.end_ns))
    return stages
