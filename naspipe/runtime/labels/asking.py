"""How a student asks its teachers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from naspipe.runtime.labels.applicants import Terms
from naspipe.tutoring.desk import Desk


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """How a student asks."""

    desk: Desk
    key: dict[str, Any]
    """Whose labels; see :func:`naspipe.runtime.labels.label_file.label_key`."""
    terms: Terms
    timeout_seconds: float
    """Without any teacher, until the run ends."""
    fields: Callable[[int], Sequence[torch.Tensor]] | None = None
    """What goes with the request of a batch; None where teachers have the data."""
