"""Admission: which subnets may be under way on a stage, and in which order it is handed them.

The admission of a stream is a window over sequence IDs or steps, or a bulk; ``Intake`` turns it
into the subnets that a stage admits, also while the stream is still growing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from naspipe.config.errors import ConfigError, InvariantError
from naspipe.config.ids import LayerId, StageId
from naspipe.config.steps import ONE_PASS, Steps
from naspipe.engine.events import Planned


class AdmissionWindow:
    """Admits sequence ID y when y < (oldest unfinished here) + ``window``, in order, no gaps.

    The window is a range of sequence IDs, not a count of subnets, so the oldest unfinished
    subnet is always inside it and nothing younger can take its place.

    The stream begins with ``first``; what is below is done. Only subnets that are known
    (:meth:`learn`) are admitted; without a word all are.
    """

    def __init__(self, window: int, num_subnets: int, first: int = 0) -> None:
        if window < 1:
            raise ConfigError(f"window: expected 1 or more subnets under way, found {window}")
        self._window = window
        self._num_subnets = num_subnets
        self._num_known = num_subnets
        self.next = first
        """The first sequence ID that was not admitted."""
        self.oldest = first
        """The oldest sequence ID that is not retired."""
        self._retired: set[int] = set()
        self._is_held = self._is_stopped = False

    @property
    def is_finished(self) -> bool:
        """Whether every subnet of the stream is retired."""
        return self.oldest == self._num_subnets

    def hold(self) -> int:
        """Admit nothing more of its own accord, because the stream is about to be cut short.

        Returns the first sequence ID that was not admitted.
        """
        self._is_held = True
        return self.next

    def stop(self, num_subnets: int) -> range:
        """Cut the stream short; returns what is left to admit. Nothing beyond the cut was
        admitted."""
        self._num_subnets, self._is_stopped = num_subnets, True
        return self.reach(num_subnets - 1)

    def learn(self, num_known: int) -> range:
        """``num_known`` subnets are known so far; returns the sequence IDs to admit now."""
        self._num_known = num_known
        return self.reach(self._num_subnets - 1) if self._is_stopped else self.open()

    def open(self) -> range:
        """Sequence IDs to admit now, in order and without gaps."""
        last = self.next if self._is_held else self.oldest + self._window
        return self.reach(last - 1)

    def reach(self, sequence_id: int) -> range:
        """Sequence IDs to admit so that this one is: a peer whose view is older sent work for
        it."""
        limit = min(self._num_known, self._num_subnets)
        first, self.next = self.next, max(self.next, min(sequence_id + 1, limit))
        return range(first, self.next)

    def retire(self, sequence_id: int) -> range:
        """A subnet is done here; returns the sequence IDs to admit now."""
        self._retired.add(sequence_id)
        while self.oldest in self._retired:
            self._retired.remove(self.oldest)
            self.oldest += 1
        return self.open()


class BulkAdmission(AdmissionWindow):
    """Admits a whole bulk of subnets at once, when the one before is finished here (GPipe)."""

    def open(self) -> range:
        return self.reach(self.next - 1 if self._is_held else self.oldest)

    def reach(self, sequence_id: int) -> range:
        return super().reach(sequence_id - sequence_id % self._window + self._window - 1)


class StepAdmission(AdmissionWindow):
    """The passes of a step are admitted together, so that each knows what the others use.

    Where a step begins with probes, the others may become known later, and come together then.

    Args:
        steps: what a step is made of.
        window: trained passes that may be under way; as many whole steps as fit, one at least.
        num_subnets: of the stream, a number of whole steps.
        first: the sequence ID to begin with, which begins a step.
    """

    def __init__(self, steps: Steps, window: int, num_subnets: int, first: int = 0) -> None:
        self._passes = steps.passes
        super().__init__(max(1, window // steps.trained) * steps.passes, num_subnets, first)

    def hold(self) -> int:
        return -(-super().hold() // self._passes) * self._passes

    def open(self) -> range:
        if self._is_held:
            return self.reach(self.next - 1)
        return self.reach(self.oldest - self.oldest % self._passes + self._window - 1)

    def reach(self, sequence_id: int) -> range:
        return super().reach(sequence_id - sequence_id % self._passes + self._passes - 1)


class Absence(AdmissionWindow):
    """The admission of a stream that a stage takes no part in: no subnet is ever admitted."""

    def __init__(self, num_subnets: int) -> None:
        super().__init__(1, num_subnets, num_subnets)

    def hold(self) -> int:
        return 0  # where the stream is cut short is for others to say

    def stop(self, num_subnets: int) -> range:
        return self.open()


class Intake:
    """Hands a stage its subnets, in sequence order and without gaps.

    A stream may be known from the beginning, or grow while it runs (:meth:`learn`): its subnets
    are then proposed by a strategy that waits for scores. What was admitted is not kept.
    """

    def __init__(
        self,
        admission: AdmissionWindow,
        known: Iterable[Planned] = (),
        first: int = 0,
        steps: Steps = ONE_PASS,
    ) -> None:
        self._admission = admission
        self._steps = steps
        self._ahead: deque[Planned] = deque()
        """Subnets that are known and not yet admitted."""
        self._num_known = first
        self._done = admission.next
        self._end: int | None = None
        self.homes: dict[LayerId, StageId] = {}
        """For each layer of the trained subnets so far, the stage that uses it first."""
        self._waiting = self.learn(first, tuple(known))

    @property
    def is_finished(self) -> bool:
        return self._admission.is_finished

    @property
    def next(self) -> int:
        return self._admission.next

    @property
    def under_way(self) -> int:
        return self._admission.next - self._done

    def knows(self, sequence_id: int) -> bool:
        """Whether this stage was told what a subnet is."""
        return sequence_id < self._num_known

    def learn(self, first: int, planned: Sequence[Planned]) -> list[Planned]:
        """The next subnets are known, from sequence ID ``first`` on; returns those to admit now."""
        if first != self._num_known:
            raise InvariantError(
                f"subnets from {first} on were told, expected from {self._num_known} on"
            )
        self._num_known += len(planned)
        for subnet, partition, _ in planned:
            if not self._steps.is_probe(subnet.sequence_id):
                for block in range(len(subnet.chain)):
                    self.homes.setdefault(subnet.layer(block), partition.stage_of(block))
        if not self._admission.is_finished:
            self._ahead.extend(planned)
        return self._take(self._admission.learn(self._num_known))

    def open(self) -> list[Planned]:
        waiting, self._waiting = self._waiting, []
        return waiting

    def hold(self) -> int:
        return self._admission.hold()

    def stop(self, cut: int) -> list[Planned]:
        """Cut the stream short; returns what is left to admit, as far as it is known."""
        self._end = cut
        return self._take(self._admission.stop(cut))

    def take_end(self) -> int | None:
        """Where the stream was cut short, returned once, when everything before it is admitted."""
        if self._end is None or self._admission.next < self._end:
            return None
        end, self._end = self._end, None
        return end

    def reach(self, sequence_id: int) -> list[Planned]:
        """What to admit so that a known subnet is: a peer with an older view sent work for it."""
        return self._take(self._admission.reach(sequence_id))

    def retire(self, sequence_id: int) -> list[Planned]:
        self._done += 1
        return self._take(self._admission.retire(sequence_id))

    def _take(self, sequence_ids: range) -> list[Planned]:
        return [self._ahead.popleft() for _ in sequence_ids]
