"""How long a student waits for one label: a line a minute, and an end."""

from __future__ import annotations

from naspipe.config.errors import ConfigError

NOTE_SECONDS = 60.0


class LabelPatience:
    """Told again and again what is missing; times are seconds of one monotonic clock.

    Args:
        timeout_seconds: for one label, from when it was the first that is missing.
        now: the time.
    """

    def __init__(self, timeout_seconds: float, now: float) -> None:
        self._timeout = timeout_seconds
        self._missing: int | None = None
        self._since = self._noted = self._told = now
        self.seconds = 0.0
        """In all, in which the student had asked for a label that was not there."""

    def tell(self, now: float, missing: int | None, num_teachers: int, why: str = "") -> str:
        """A line for the user, mostly empty.

        Args:
            now: the time.
            missing: the first batch whose label was asked for and is not there.
            num_teachers: that may be asked.
            why: one of them would not make a batch, where that is known.

        Raises:
            ConfigError: when it has been missing for too long.
        """
        if self._missing is not None:
            self.seconds += now - self._told
        self._told = now
        if missing is None or missing != self._missing:
            self._missing, self._since, self._noted = missing, now, now
            return ""
        waited = now - self._since
        there = f"{num_teachers} teachers that do not answer" if num_teachers else "none"
        there += f" ({why:.200})" if why else ""
        if waited >= self._timeout:
            raise ConfigError(
                f"labels: expected a teacher within {self._timeout:g} s (timeout_seconds), found "
                f"{there}; the first label that is missing is that of batch {missing}; start one "
                f"with naspipe teach and resume the run"
            )
        if now - self._noted < NOTE_SECONDS:
            return ""
        self._noted = now
        return f"the label of batch {missing} is missing for {waited:.0f} s; teachers: {there}"
