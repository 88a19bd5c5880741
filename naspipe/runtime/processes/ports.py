"""The port through which the launcher passes on what stages report of the first steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class FirstSteps(Protocol):
    """Compares what stages report; see :class:`naspipe.verification.verifier.Verifier`."""

    @property
    def is_settled(self) -> bool:
        """Whether the comparison is over, so that checkpoints may be published."""
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
