"""What a desk goes by."""

from __future__ import annotations

import math
from dataclasses import dataclass

from naspipe.core.errors import ConfigError

SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DeskSettings:
    """Thresholds, deadlines and bounds. None of them changes a bit of a label.

    Raises:
        ConfigError: for values that cannot be.
    """

    upper: int = 64
    """Labels that may be asked for and held together. There, the desk stops to ask ahead."""
    lower: int = 48
    """It asks ahead again when so many are left; less than ``upper``."""
    deadline_factor: float = 3.0
    """An answer is late after so many times its teacher's measured time; more than 1."""
    grace_seconds: float = 0.0
    """Beside that: what a busy machine may take longer at any time."""
    audit: int = 0
    """One in so many labels is made by two teachers; 0 for none."""
    most: int = 64
    """Teachers; one more is never hired."""
    requests: int = 2
    """That a teacher may have under way, so that it need not wait for the next one."""
    load_seconds: float = 60.0
    """How long a hired teacher may take until it joins; then another one is hired."""
    release_seconds: float = 300.0
    """A teacher goes that was not needed for so long; 0 for never."""
    first_batch: int = 0
    """Lowest number of a batch: more than 0 where a run goes on behind a checkpoint."""
    last_batch: int | None = None
    """Highest number of a batch; None where it is not known."""

    def __post_init__(self) -> None:
        last = math.inf if self.last_batch is None else self.last_batch
        for name, is_allowed, expected in (
            ("upper", self.upper >= 1, "1 or more"),
            ("lower", 0 <= self.lower < self.upper, f"0 or more and less than upper={self.upper}"),
            ("deadline_factor", 1 < self.deadline_factor < math.inf, "more than 1"),
            ("grace_seconds", 0 <= self.grace_seconds < math.inf, "0 or more"),
            ("audit", self.audit >= 0, "0 or more"),
            ("most", self.most >= 1, "1 or more"),
            ("requests", self.requests >= 1, "1 or more"),
            ("load_seconds", 0 <= self.load_seconds < math.inf, "0 or more"),
            ("release_seconds", 0 <= self.release_seconds < math.inf, "0 or more"),
            ("first_batch", self.first_batch >= 0, "0 or more"),
            ("last_batch", last >= self.first_batch - 1, f"{self.first_batch - 1} or more"),
        ):
            if not is_allowed:
                found = getattr(self, name)
                raise ConfigError(f"teachers: expected {name} to be {expected}, found {found}")


def nanoseconds(seconds: float) -> int:
    """Whole nanoseconds, at least one."""
    return max(1, round(seconds * SECOND_NS))
