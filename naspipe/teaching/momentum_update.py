"""How the next version of a layer that follows another one is made."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from naspipe.core.errors import ConfigError

BUFFERS = ("own", "copied", "averaged")
MODES = ("train", "eval")


@dataclass(frozen=True, slots=True, kw_only=True)
class MomentumUpdate:
    """``teacher.lerp_(student, 1 - tau)`` behind each step of the student, for each parameter.

    Part of a run's definition.

    Raises:
        ConfigError: for a value that cannot be.
    """

    tau: float
    """At the first step, from 0 to 1."""
    end: float | None = None
    """At the last one, reached by a half cosine (BYOL, section 3.2); None for ``tau`` always."""
    buffers: str = "own"
    """``own``: batch statistics of the teacher's own forwards; ``copied`` from the student behind
    each of its steps; or ``averaged`` as parameters are (whole numbers are copied)."""
    mode: str = "train"
    """In which the teacher's forwards run: ``train`` or ``eval``."""

    def __post_init__(self) -> None:
        for name, value in (("tau", self.tau), ("end", self.end)):
            if value is not None and not 0.0 <= value <= 1.0:
                raise ConfigError(f"momentum: expected {name} from 0 to 1, found {value}")
        for name, text, known in (
            ("buffers", self.buffers, BUFFERS), ("mode", self.mode, MODES),
        ):  # fmt: skip
            if text not in known:
                raise ConfigError(
                    f"momentum: expected {name} to be {' or '.join(known)}, found {text!r:.80}"
                )

    def rate(self, step: int, steps: int) -> float:
        """tau of one step of ``steps``, whatever the order in which they are computed."""
        if self.end is None:
            return self.tau
        falls = 0.5 * (1.0 + math.cos(math.pi * step / max(1, steps)))
        return self.end - (self.end - self.tau) * falls

    def as_dict(self) -> Mapping[str, Any]:
        """Plain values for the manifest."""
        return asdict(self)
