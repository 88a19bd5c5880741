"""Where teachers are introduced to students."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from naspipe.runtime.registries.teacher_card import TeacherCard


class Registry(Protocol):
    """Holds teachers' cards for as long as they are renewed. It may be down: labels flow on."""

    def announce(self, card: TeacherCard, ttl_seconds: float) -> None:
        """Show a card, or go on to show it, for so long.

        Raises:
            TransportError: when the registry does not answer.
        """
        ...

    def withdraw(self, name: str) -> None:
        """Show it no longer.

        Raises:
            TransportError: when the registry does not answer.
        """
        ...

    def cards(self) -> Sequence[TeacherCard]:
        """Those that are shown now, by name; what is no card is left out.

        Raises:
            TransportError: when the registry does not answer.
        """
        ...
