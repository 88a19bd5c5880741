"""What a user's own code raises, as one line that says what was asked of it and where it broke."""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from naspipe.core.errors import ConfigError, NaspipeError, reason

_NASPIPE = str(Path(__file__).parent.parent)
_LIBRARIES = tuple(
    sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")
)


@contextmanager
def users_code(what: str) -> Iterator[None]:
    """Turn whatever is raised into a ConfigError about ``what``; naspipe's own errors pass.

    Raises:
        ConfigError: with the type and message of the error, and its file and line.
    """
    try:
        yield
    except NaspipeError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{what} {reason(error)}{_place(error)}") from error


def _place(error: BaseException) -> str:
    """File and line of the innermost frame that is the user's, or nothing where there is none."""
    if isinstance(error, SyntaxError):
        return ""  # its message ends with them
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((_NASPIPE, "<frozen"))
    ]
    own = [frame for frame in frames if not frame.filename.startswith(_LIBRARIES)]
    for frame in (own or frames)[-1:]:
        return f" ({frame.filename}:{frame.lineno})"
    return ""
