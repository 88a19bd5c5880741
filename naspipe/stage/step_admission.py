"""Which subnets may be under way where a step has several passes: whole steps, in order."""

from __future__ import annotations

from naspipe.stage.admission import AdmissionWindow


class StepAdmission(AdmissionWindow):
    """The passes of a step are admitted together, so that each knows what the others use.

    Args:
        passes: of a step.
        window: sequence IDs that may be under way; as many whole steps as fit, one at least.
        num_subnets: of the stream, a multiple of ``passes``.
        first: the sequence ID to begin with, a multiple of ``passes``.
    """

    def __init__(self, passes: int, window: int, num_subnets: int, first: int = 0) -> None:
        super().__init__(max(1, window // passes) * passes, num_subnets, first)
        self._passes = passes

    def open(self) -> range:
        """Sequence IDs to admit now."""
        if self._is_held:
            return self.reach(self._next - 1)
        return self.reach(self._oldest - self._oldest % self._passes + self._window - 1)

    def reach(self, sequence_id: int) -> range:
        """Sequence IDs to admit so that the whole step of this one is."""
        return super().reach(sequence_id - sequence_id % self._passes + self._passes - 1)
