"""How long a stage stands still because a layer is not on its device."""

from __future__ import annotations


class Stalls:
    """Measures the time from a stage's wish to begin until it can."""

    def __init__(self) -> None:
        self._since_ns: int | None = None
        self._last_ns = 0

    @property
    def is_stalled(self) -> bool:
        """Whether the stage waits now."""
        return self._since_ns is not None

    def begin(self, now_ns: int) -> None:
        """The stage waits, from now on unless it did already."""
        if self._since_ns is None:
            self._since_ns = now_ns

    def end(self, now_ns: int) -> None:
        """The stage goes on."""
        if self._since_ns is not None:
            self._last_ns = max(1, now_ns - self._since_ns)
            self._since_ns = None

    def take(self) -> int:
        """How long the last wait took, told once; 0 for none."""
        last_ns, self._last_ns = self._last_ns, 0
        return last_ns
