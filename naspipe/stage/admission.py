"""Which subnets may be under way on a stage: a window over sequence IDs or steps, or a bulk."""

from __future__ import annotations

from naspipe.config.errors import ConfigError
from naspipe.config.steps import Steps


class AdmissionWindow:
    """Admits sequence ID y when y < (oldest unfinished here) + ``window``, in order, no gaps.

    The window is a range of sequence IDs, not a count of subnets, so the oldest unfinished
    subnet is always inside it and nothing younger can take its place.

    Args:
        window: sequence IDs that may be under way.
        num_subnets: of the stream.
        first: the sequence ID to begin with; what is below is done.

    Only subnets that are known (:meth:`learn`) are admitted; without a word all are.
    """

    def __init__(self, window: int, num_subnets: int, first: int = 0) -> None:
        if window < 1:
            raise ConfigError(f"window: expected 1 or more subnets under way, found {window}")
        self._window = window
        self._num_subnets = num_subnets
        self._num_known = num_subnets
        self._next = first
        self._oldest = first
        self._retired: set[int] = set()
        self._is_held = self._is_stopped = False

    @property
    def is_finished(self) -> bool:
        """Whether every subnet of the stream is retired."""
        return self._oldest == self._num_subnets

    @property
    def next(self) -> int:
        """The first sequence ID that was not admitted."""
        return self._next

    @property
    def oldest(self) -> int:
        """The oldest sequence ID that is not retired."""
        return self._oldest

    def hold(self) -> int:
        """Admit nothing more of one's own accord; returns the first that was not admitted."""
        self._is_held = True
        return self._next

    def stop(self, num_subnets: int) -> range:
        """Cut the stream short; returns what is left to admit. Nothing behind that was admitted."""
        self._num_subnets, self._is_stopped = num_subnets, True
        return self.reach(num_subnets - 1)

    def learn(self, num_known: int) -> range:
        """So many subnets are known so far; returns the sequence IDs to admit now."""
        self._num_known = num_known
        return self.reach(self._num_subnets - 1) if self._is_stopped else self.open()

    def open(self) -> range:
        """Sequence IDs to admit now."""
        last = self._next if self._is_held else self._oldest + self._window
        return self.reach(last - 1)

    def reach(self, sequence_id: int) -> range:
        """Sequence IDs to admit so that this one is: a peer with an older view sent work for it."""
        limit = min(self._num_known, self._num_subnets)
        first, self._next = self._next, max(self._next, min(sequence_id + 1, limit))
        return range(first, self._next)

    def retire(self, sequence_id: int) -> range:
        """A subnet is done here; returns the sequence IDs to admit now."""
        self._retired.add(sequence_id)
        while self._oldest in self._retired:
            self._retired.remove(self._oldest)
            self._oldest += 1
        return self.open()


class BulkAdmission(AdmissionWindow):
    """Admits a whole bulk of subnets at once, when the one before is finished here (GPipe)."""

    def open(self) -> range:
        """Sequence IDs to admit now."""
        return self.reach(self._next - 1 if self._is_held else self._oldest)

    def reach(self, sequence_id: int) -> range:
        """Sequence IDs to admit so that the bulk of this one is."""
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
        """Admit no further step of one's own accord; returns the first of which nothing was."""
        return -(-super().hold() // self._passes) * self._passes

    def open(self) -> range:
        """Sequence IDs to admit now."""
        if self._is_held:
            return self.reach(self._next - 1)
        return self.reach(self._oldest - self._oldest % self._passes + self._window - 1)

    def reach(self, sequence_id: int) -> range:
        """Sequence IDs to admit so that the whole step of this one is."""
        return super().reach(sequence_id - sequence_id % self._passes + self._passes - 1)


class Absence(AdmissionWindow):
    """Of a stream that a stage has nothing to do with: it never hears of a subnet."""

    def __init__(self, num_subnets: int) -> None:
        super().__init__(1, num_subnets, num_subnets)

    def hold(self) -> int:
        """Where the stream is cut short is for others to say."""
        return 0

    def stop(self, num_subnets: int) -> range:
        """Nothing is left to admit."""
        return self.open()
