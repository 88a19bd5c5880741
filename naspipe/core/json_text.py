"""JSON from files and messages that anybody may have written."""

from __future__ import annotations

import json
from typing import Any


def parse_json(text: str | bytes) -> Any:
    """The value that a text stands for.

    Raises:
        ValueError: when it is no JSON, has a number of too many digits, or is nested too deep.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
