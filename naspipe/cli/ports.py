"""What options are added to: ``argparse.ArgumentParser``, or a group of one."""

from __future__ import annotations

import argparse
from typing import Any, Protocol


class Options(Protocol):
    """A parser, or a part of one with a title of its own."""

    def add_argument(self, *names: str, **options: Any) -> argparse.Action:
        """Declare an option."""
