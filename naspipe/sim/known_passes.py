"""What a stage knows of steps that begin with probes: as many as are through say what follows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from naspipe.config.ids import Access, AccessKind, StreamId
from naspipe.config.steps import Steps
from naspipe.core.task import Task, TaskKind
from naspipe.sim.ports import Costs, Learner
from naspipe.sim.virtual_clock import VirtualClock


class KnownPasses:
    """Follows the probes of every stream; a step's other passes are known behind the last one.

    Args:
        steps: what a step is made of, in every stream.
        lengths: blocks of each stream's chain.
    """

    def __init__(self, steps: Steps, lengths: Sequence[int]) -> None:
        self._steps = steps
        self._ends = [length - 1 for length in lengths]
        self._through: Counter[tuple[int, int]] = Counter()
        """By stream and step, probes that have a loss."""

    @property
    def first(self) -> int:
        """Passes of each stream that are known at the beginning."""
        return self._steps.probes

    def take(self, access: Access) -> int | None:
        """How many passes of its stream are known from now on, where an access leads to more."""
        steps, layer = self._steps, access.layer
        is_end = layer.block == self._ends[layer.stream] and access.kind is AccessKind.FORWARD
        if not is_end or not steps.is_probe(access.sequence_id):
            return None
        step = steps.step(access.sequence_id)
        self._through[layer.stream, step] += 1
        if self._through[layer.stream, step] < steps.probes:
            return None
        del self._through[layer.stream, step]
        return (step + 1) * steps.passes + steps.probes

    def telling(
        self,
        record: Callable[[Access], None],
        stages: Sequence[Learner],
        clock: VirtualClock,
        costs: Costs,
    ) -> Callable[[Access], None]:
        """Takes accesses for ``record``, and has the launcher tell all stages what is known."""

        def taken(access: Access) -> None:
            record(access)
            if (known := self.take(access)) is not None:
                stream = access.layer.stream
                told = Task(stream, access.sequence_id, TaskKind.FORWARD, access.stage)
                clock.after(2 * costs.message_ns(told), partial(_learn, stages, stream, known))

        return taken


def _learn(stages: Sequence[Learner], stream: StreamId, known: int) -> None:
    """All are told before any of them hands a subnet on."""
    for stage in stages:
        stage.learn(stream, known)
