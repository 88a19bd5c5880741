"""The subnets of one stream as far as a stage knows them, and which of them may be under way."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from naspipe.config.errors import InvariantError
from naspipe.config.ids import LayerId, StageId
from naspipe.config.steps import ONE_PASS, Steps
from naspipe.core.events import Planned
from naspipe.core.ports import Admission


class Intake:
    """Hands a stage its subnets, in sequence order and without gaps.

    A stream may be known from the beginning, or grow while it runs (:meth:`learn`): its subnets
    are then proposed by a strategy that waits for scores. What was admitted is not kept.

    Args:
        admission: which sequence IDs may be under way.
        known: the first subnets.
        first: the sequence ID that the stream begins with here.
        steps: which of the subnets are probes.
    """

    def __init__(
        self,
        admission: Admission,
        known: Iterable[Planned] = (),
        first: int = 0,
        steps: Steps = ONE_PASS,
    ) -> None:
        self._admission = admission
        self._steps = steps
        self._ahead: deque[Planned] = deque()
        """Known and not admitted."""
        self._num_known = first
        self._done = admission.next
        self._end: int | None = None
        self.homes: dict[LayerId, StageId] = {}
        """Of each layer of the subnets so far, but for probes, the stage that uses it first."""
        self._waiting = self.learn(first, tuple(known))

    @property
    def is_finished(self) -> bool:
        """Whether every subnet of the stream is retired."""
        return self._admission.is_finished

    @property
    def next(self) -> int:
        """The first sequence ID that was not admitted."""
        return self._admission.next

    @property
    def under_way(self) -> int:
        """How many subnets were admitted and are not retired."""
        return self._admission.next - self._done

    def knows(self, sequence_id: int) -> bool:
        """Whether this stage was told what a subnet is."""
        return sequence_id < self._num_known

    def learn(self, first: int, planned: Sequence[Planned]) -> list[Planned]:
        """The next subnets are known, from sequence ID ``first`` on; returns those to admit now.

        Raises:
            InvariantError: when they do not follow the known ones.
        """
        if first != self._num_known:
            raise InvariantError(
                f"subnets from {first} on were told, expected from {self._num_known} on"
            )
        self._num_known += len(planned)
        for each in planned:
            self._note(each)
        if not self._admission.is_finished:
            self._ahead.extend(planned)
        return self._take(self._admission.learn(self._num_known))

    def _note(self, planned: Planned) -> None:
        subnet, partition, _ = planned
        if self._steps.is_probe(subnet.sequence_id):
            return
        for block in range(len(subnet.chain)):
            layer = subnet.layer(block)
            if layer not in self.homes:
                self.homes[layer] = partition.stage_of(block)

    def open(self) -> list[Planned]:
        """What to admit at the beginning."""
        waiting, self._waiting = self._waiting, []
        return waiting

    def hold(self) -> int:
        """Admit nothing more of one's own accord; see :meth:`naspipe.core.ports.Admission.hold`."""
        return self._admission.hold()

    def stop(self, cut: int) -> list[Planned]:
        """Cut the stream short; returns what is left to admit, as far as it is known."""
        self._end = cut
        return self._take(self._admission.stop(cut))

    def take_end(self) -> int | None:
        """Where the stream was cut short, once: when all before it is admitted."""
        if self._end is None or self._admission.next < self._end:
            return None
        end, self._end = self._end, None
        return end

    def reach(self, sequence_id: int) -> list[Planned]:
        """What to admit so that a known subnet is: a peer with an older view sent work for it."""
        return self._take(self._admission.reach(sequence_id))

    def retire(self, sequence_id: int) -> list[Planned]:
        """A subnet is done here; returns what to admit now."""
        self._done += 1
        return self._take(self._admission.retire(sequence_id))

    def _take(self, sequence_ids: range) -> list[Planned]:
        return [self._ahead.popleft() for _ in sequence_ids]
