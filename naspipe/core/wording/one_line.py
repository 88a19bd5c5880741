"""An end that a user asked for is said in one line, and not in a traceback of naspipe's."""

from __future__ import annotations

import sys
from types import TracebackType


def in_one_line(error: BaseException) -> BaseException:
    """The error; where nobody catches it, Python prints what it says and no traceback."""
    usual = sys.excepthook

    def said(kind: type[BaseException], found: BaseException, trace: TracebackType | None) -> None:
        if found is error:
            print(f"naspipe: {error}", file=sys.stderr)
        else:
            usual(kind, found, trace)

    sys.excepthook = said
    return error
