"""The port through which the launcher passes on what stages report of the first steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from naspipe.config.ids import Subnet


class FirstSteps(Protocol):
    """Compares what stages report; see :class:`naspipe.verification.verifier.Verifier`."""

    def may_publish(self, cut: int) -> bool:
        """Whether a checkpoint may be published: all below its sequence ID has been compared."""
        ...

    def take_subnets(self, stream: int, first: int, subnets: Sequence[Subnet]) -> None:
        """A stream has grown by these subnets, whose sequence IDs begin with ``first``."""
        ...

    def take_loss(self, stream: int, sequence_id: int, bits: str) -> None:
        """A stage reported a loss. Raises VerificationError if it differs."""
        ...

    def take_layer(
        self, stream: int, sequence_id: int, label: str, digests: Mapping[str, str]
    ) -> None:
        """A stage reported a layer that it has written. Raises VerificationError if it differs."""
        ...

    def wait(self) -> None:
        """Wait until the comparison is over, within a bound. Raises VerificationError."""
        ...
