"""What compares nothing, in the place of a verifier."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from naspipe.config.ids import Subnet


class NotCompared:
    """Takes what is reported and compares nothing."""

    def may_publish(self, cut: int) -> bool:
        """See :class:`naspipe.runtime.processes.ports.FirstSteps`."""
        return True

    def take_subnets(self, stream: int, first: int, subnets: Sequence[Subnet]) -> None:
        """See :class:`naspipe.runtime.processes.ports.FirstSteps`."""

    def take_loss(self, stream: int, sequence_id: int, bits: str) -> None:
        """See :class:`naspipe.runtime.processes.ports.FirstSteps`."""

    def take_layer(
        self, stream: int, sequence_id: int, label: str, digests: Mapping[str, str]
    ) -> None:
        """See :class:`naspipe.runtime.processes.ports.FirstSteps`."""

    def wait(self) -> None:
        """See :class:`naspipe.runtime.processes.ports.FirstSteps`."""
