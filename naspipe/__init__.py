"""Pipelined supernet training with the bits of a one-at-a-time PyTorch loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from naspipe.core.errors import ConfigError, NaspipeError, StageFailedError
from naspipe.core.rules import Exact, Frozen, Lag
from naspipe.core.space import Block, Shared, Space

if TYPE_CHECKING:
    from naspipe.frontend.api import train as train
    from naspipe.frontend.run import Run as Run

__all__ = [
    "Block", "ConfigError", "Exact", "Frozen", "Lag", "NaspipeError", "Run", "Shared", "Space",
    "StageFailedError", "train",
]  # fmt: skip
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Load what needs torch only when it is asked for."""
    if name == "train":
        from naspipe.frontend.api import train

        return train
    if name == "Run":
        from naspipe.frontend.run import Run

        return Run
    raise AttributeError(f"module naspipe has no attribute {name!r}")
