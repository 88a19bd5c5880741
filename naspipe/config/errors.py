"""The errors that naspipe raises deliberately, and how any error is written on one line.

Every message names what is wrong and where, what was expected and found, and what to do.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any


class NaspipeError(Exception):
    """Base class of all errors that naspipe raises deliberately.

    Instances can be pickled by a user's own process pool whatever arguments their class takes.
    Escape codes of terminals, as in messages of other libraries, are removed.
    """

    def __init__(self, *arguments: object) -> None:
        super().__init__(*(_plain(each) if isinstance(each, str) else each for each in arguments))

    def __reduce__(self) -> tuple[Callable[..., NaspipeError], tuple[Any, ...]]:
        return _made_again, (type(self), self.args, vars(self))


_ESCAPES = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)?|[@-Z\\^_])")


def _plain(text: str) -> str:
    return _ESCAPES.sub("", text) if "\x1b" in text else text


def _made_again(
    kind: type[NaspipeError], arguments: tuple[Any, ...], values: Mapping[str, Any]
) -> NaspipeError:
    error = kind.__new__(kind, *arguments)
    error.__dict__.update(values)
    return error


def reason(error: BaseException) -> str:
    """Return the type and message of a foreign error, on one line."""
    if isinstance(error, UsersCodeError):  # the last line has both
        return str(error).strip().splitlines()[-1][:300]
    text = " ".join(str(error).split())
    hint = next((why for part, why in _HINTS.items() if part in text), "")
    return f"{type(error).__name__}: {text:.300}{hint}" if text else type(error).__name__


_HINTS = {
    "does not require grad and does not have a grad_fn": "; its code takes a gradient of a tensor "
    "that depends on no parameter and no input that requires one, as after detach(), under "
    "torch.no_grad(), of whole numbers or of frozen parameters"
}


class ConfigError(NaspipeError):
    """The user's input cannot be used; raised before anything is written (exit status 2)."""


class UsersCodeError(NaspipeError):
    """The user's code raised an error in another process; the message has its traceback."""


class DataError(ConfigError):
    """A data file is missing, damaged or cannot be fetched."""


class NotPreparedError(DataError):
    """A data set is not prepared yet; ``naspipe data prepare`` or the command itself does it."""

    def __init__(self, name: str, root: Path, message: str) -> None:
        super().__init__(message)
        self.name, self.root = name, root


class BlockInputEditedError(NaspipeError):
    """A block changed one of its inputs in place, which would corrupt the block before it."""


class TransportError(NaspipeError):
    """A peer is gone, silent for longer than the deadline, or sent an unreadable message."""


class StorageError(NaspipeError):
    """The files of a run cannot be written: a full disk, or a read-only directory."""


class RunInterruptedError(NaspipeError):
    """The run was asked to end, and ended after writing a checkpoint."""

    def __init__(self, signal_number: int, message: str, *, from_elsewhere: bool = False) -> None:
        self.signal_number = signal_number
        self.from_elsewhere = from_elsewhere
        """True if another host received the signal."""
        super().__init__(message)


class NotFiniteError(NaspipeError):
    """A loss is infinite or NaN, and the recipe stops the run in this case."""


class ObserverError(NaspipeError):
    """The user's observer of a run raised an error; the run ended with a checkpoint if possible."""


class StageFailedError(NaspipeError):
    """A stage failed; carries the first cause: the stage, its task, host and traceback.

    The first line has everything but the traceback: ``stage 1 failed in 0.3F@1 block 4 (layer 3.1)
    on HOST: RuntimeError: why``. The default ``cause`` is the last line of the traceback.
    """

    def __init__(
        self, stage: int, task: str, traceback_text: str, host: str = "", cause: str = ""
    ) -> None:
        self.stage = stage
        self.task = task
        self.traceback_text = traceback_text
        self.host = host or os.uname().nodename
        lines = [line.strip() for line in traceback_text.splitlines() if line.strip()]
        cause = cause or (lines[-1] if lines else "no cause is known")
        more = f"\n{traceback_text}" if len(lines) > 1 else ""
        super().__init__(f"stage {stage} failed in {task} on {self.host}: {cause:.500}{more}")


class VerificationError(NaspipeError):
    """A recomputed result differs: a run's first steps from the plain loop, or a search's score
    from the plain network; nothing was published.
    """


class LogError(NaspipeError):
    """A recorded file is damaged in the middle, so it cannot be repaired."""


class InvariantError(NaspipeError):
    """An invariant of the schedule was violated: a bug in naspipe, never the user's fault."""


def in_one_line(error: BaseException) -> BaseException:
    """Return the error; if it is not caught, Python prints its message without a traceback."""
    usual = sys.excepthook

    def said(kind: type[BaseException], found: BaseException, trace: TracebackType | None) -> None:
        if found is error:
            print(f"naspipe: {error}", file=sys.stderr)
        else:
            usual(kind, found, trace)

    sys.excepthook = said
    return error
