"""Orders of systems without causal order, for comparison: GPipe's, and plain model parallelism.

A script that calls :func:`register` can simulate or train with ``order="gpipe"``, forwards before
backwards, and with ``order="model-parallel"``, where also one stage works at a time. No bit depends
on the order.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from naspipe.config.steps import Steps
from naspipe.config.wiring import CHAIN, Wiring
from naspipe.engine.builder import register_order
from naspipe.engine.events import Task, TaskKind
from naspipe.engine.orders import ReadyTasks
from naspipe.engine.ports import DispatchOrder
from naspipe.engine.work import Progress, Work


def register() -> None:
    """Let both orders be chosen in this process and in those forked from it."""
    register_order("gpipe", lambda streams: ForwardsFirstOrder())
    register_order("model-parallel", lambda streams: ForwardsFirstOrder(), WholeSteps)


class ForwardsFirstOrder:
    """Forward before backward, then the older subnet: GPipe's (Huang et al. 2019, section 2.3).

    The last stage is fed as early as can be; in return, activations of all passes are kept.
    """

    max_run = None

    def key(self, task: Task, priority: int) -> tuple[bool, int, int, int]:
        """The least key runs first."""
        return (task.kind is TaskKind.BACKWARD, task.sequence_id, task.stream, task.section)


@dataclass(slots=True)
class _Turn:
    """One step of streams that are joined, on this stage."""

    left: int
    """Passes that are not admitted yet."""
    works: list[Work] = field(default_factory=list)
    """Those that have blocks here."""

    @property
    def is_over(self) -> bool:
        return not self.left and not any(work.todo for work in self.works)

    def is_open(self, kind: TaskKind, fed: Collection[int]) -> bool:
        """Whether every task of a kind has its input, but those of streams that are ``fed``."""
        return not self.left and not any(
            CHAIN in work.missing
            for work in self.works
            if work.task.kind is kind and work.task.stream not in fed
        )


class WholeSteps(ReadyTasks):
    """One stage works at a time, on all passes of a step at once: plain model parallelism.

    A stage begins the forwards of a step when all of them have their inputs, those of the streams
    that taps join included, and when it is through with the step before. So with the backwards. The
    stage before has then done all of them, and the one behind has nothing to do yet. Streams that
    nothing joins know nothing of one another.

    Args:
        order: which of several runs first.
        lengths: blocks of each stream's chain.
        wiring: how the streams that the stage takes part in are joined, completed. It is told of
            no admission of other streams, so it must not wait for any.
        steps: how passes form steps, in every stream.
    """

    def __init__(
        self, order: DispatchOrder, lengths: Sequence[int], wiring: Wiring, steps: Steps
    ) -> None:
        super().__init__(order, starts_partly_clear=True)
        self._steps = steps
        self._joined = {
            stream: tuple(sorted(each)) for each in wiring.joined(len(lengths)) for stream in each
        }
        self._fed = {
            tap.sink[0]
            for tap in wiring.taps
            if tap.source[0] != tap.sink[0] and tap.sink[1] < lengths[tap.sink[0]] - 1
        }
        """Streams that need others before their end: nobody waits for them, who may feed them."""
        self._turns: dict[tuple[int, ...], dict[int, _Turn]] = {}
        """Of streams that are joined, by step, as far as they are not over."""
        self._held: dict[Task, Work] = {}
        """Tasks that could run, but for others' turns."""

    def admit(self, progress: Progress) -> None:
        """A subnet is under way: its tasks will be offered."""
        stream, sequence_id = progress.subnet[:2]
        joined, step = self._joined[stream], self._steps.step(sequence_id)
        turns = self._turns.setdefault(joined, {})
        turn = turns.setdefault(step, _Turn(self._steps.passes * len(joined)))
        turn.left -= 1
        turn.works += [work for work in progress.works() if work.todo]
        self._go_on(progress.forward.task)

    def offer(self, work: Work) -> bool:
        """Queue a task, and those that waited for it, when it is their turn."""
        if self._is_ready(work):
            self._held[work.task] = work
        self._release()
        return work.is_queued

    def finish(self, task: Task, block: int) -> Work:
        """As :meth:`ReadyTasks.finish`; it may be the turn of others then."""
        work = super().finish(task, block)
        if not work.todo:
            self._go_on(task)
        return work

    def _go_on(self, task: Task) -> None:
        turns, step = self._turns[self._joined[task.stream]], self._steps.step(task.sequence_id)
        if turns[step].is_over:
            del turns[step]
            self._release()

    def _release(self) -> None:
        for task, work in list(self._held.items()):
            turns, step = self._turns[self._joined[task.stream]], self._steps.step(task.sequence_id)
            if step == min(turns) and turns[step].is_open(task.kind, self._fed):
                del self._held[task]
                self._queue(work)
