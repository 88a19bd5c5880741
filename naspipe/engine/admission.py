"""Admission: which subnets may be under way on a stage, and in which order the stage gets them.

The admission of a stream is a window over sequence IDs or steps, or a bulk; ``Intake`` turns it
into the subnets that a stage admits, even while the stream is still growing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from naspipe.config.errors import ConfigError, InvariantError
from naspipe.config.ids import LayerId, StageId
from naspipe.config.steps import ONE_PASS, Steps
from naspipe.engine.events import Planned


class AdmissionWindow:
    """Admits sequence ID y if y < (oldest unfinished here) + ``window``, in order and without gaps.

    The window is a range of sequence IDs, not a count of subnets, so the oldest unfinished subnet
    is always inside it and cannot be displaced by a younger one.

    The stream begins with ``first``; subnets below it are done. Only known subnets are admitted;
    all are known unless :meth:`learn` is called.
    """

    def __init__(self, window: int, num_subnets: int, first: int = 0) -> None:
        if window < 1:
            raise ConfigError(f"window: expected 1 or more subnets under way, found {window}")
        self._window = window
        self._num_subnets = num_subnets
        self._num_known = num_subnets
        self.next = first
        """The first sequence ID that has not been admitted."""
        self.oldest = first
        """The oldest sequence ID that has not been retired."""
        self._retired: set[int] = set()
        self._is_held = self._is_stopped = False

    @property
    def is_finished(self) -> bool:
        """True if every subnet of the stream is retired."""
        return self.oldest == self._num_subnets

    def hold(self) -> int:
        """Stop admitting subnets by itself, because the stream is about to be cut short.

        Returns the first sequence ID that has not been admitted.
        """
        self._is_held = True
        return self.next

    def stop(self, num_subnets: int) -> range:
        """Cut the stream short, at or after ``next``; returns what is left to admit."""
        self._num_subnets, self._is_stopped = num_subnets, True
        return self.reach(num_subnets - 1)

    def learn(self, num_known: int) -> range:
        """Record that ``num_known`` subnets are known; returns the sequence IDs to admit now."""
        self._num_known = num_known
        return self.reach(self._num_subnets - 1) if self._is_stopped else self.open()

    def open(self) -> range:
        """Return the sequence IDs to admit now, in order and without gaps."""
        last = self.next if self._is_held else self.oldest + self._window
        return self.reach(last - 1)

    def reach(self, sequence_id: int) -> range:
        """Return what to admit up to a subnet for which a peer has already sent work."""
        limit = min(self._num_known, self._num_subnets)
        first, self.next = self.next, max(self.next, min(sequence_id + 1, limit))
        return range(first, self.next)

    def retire(self, sequence_id: int) -> range:
        """Record that a subnet is done here; returns the sequence IDs to admit now."""
        self._retired.add(sequence_id)
        while self.oldest in self._retired:
            self._retired.remove(self.oldest)
            self.oldest += 1
        return self.open()


class BulkAdmission(AdmissionWindow):
    """Admits a whole bulk of subnets at once, when the previous one has finished here (GPipe)."""

    def open(self) -> range:
        return self.reach(self.next - 1 if self._is_held else self.oldest)

    def reach(self, sequence_id: int) -> range:
        return super().reach(sequence_id - sequence_id % self._window + self._window - 1)


class StepAdmission(AdmissionWindow):
    """Admits the passes of a step together, so that each knows what the others use.

    If a step begins with probes, the other passes may become known later and are then admitted
    together.

    Args:
        steps: how passes form steps.
        window: trained passes that may be under way; as many whole steps as fit, at least one.
        num_subnets: number of subnets of the stream, a multiple of the passes of a step.
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
        return 0  # other stages determine where the stream is cut short

    def stop(self, num_subnets: int) -> range:
        return self.open()


class Intake:
    """Hands a stage its subnets, in sequence order and without gaps.

    A stream may be known from the beginning, or grow while it runs (:meth:`learn`): its subnets are
    then proposed by a strategy that waits for scores. Admitted subnets are not kept.
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
        """Return True if this stage knows the definition of a subnet."""
        return sequence_id < self._num_known

    def learn(self, first: int, planned: Sequence[Planned]) -> list[Planned]:
        """Add the next known subnets, from sequence ID ``first`` on; returns those to admit now."""
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
        """Return where the stream was cut, once, when all before it is admitted; else None."""
        if self._end is None or self._admission.next < self._end:
            return None
        end, self._end = self._end, None
        return end

    def reach(self, sequence_id: int) -> list[Planned]:
        """Return what to admit up to a known subnet for which a peer has already sent work."""
        return self._take(self._admission.reach(sequence_id))

    def retire(self, sequence_id: int) -> list[Planned]:
        self._done += 1
        return self._take(self._admission.retire(sequence_id))

    def _take(self, sequence_ids: range) -> list[Planned]:
        return [self._ahead.popleft() for _ in sequence_ids]
