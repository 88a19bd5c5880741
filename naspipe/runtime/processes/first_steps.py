"""What compares nothing, in the place of a verifier."""

from __future__ import annotations

from collections.abc import Mapping


class NotCompared:
    """Takes what is reported and compares nothing."""

    is_settled = True

    def take_loss(self, stream: int, sequence_id: int, bits: str) -> None:
        """See :class:`naspipe.runtime.processes.ports.FirstSteps`."""

    def take_layer(
        self, stream: int, sequence_id: int, label: str, digests: Mapping[str, str]
    ) -> None:
        """See :class:`naspipe.runtime.processes.ports.FirstSteps`."""

    def wait(self) -> None:
        """See :class:`naspipe.runtime.processes.ports.FirstSteps`."""
