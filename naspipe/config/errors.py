"""The errors that naspipe raises on purpose, and how an error is said in one line.

Every message says what is wrong and where, what was expected and found, and what to do. ``reason``
says somebody else's error on one line. ``in_one_line`` keeps Python from printing a traceback for
an end that the user asked for.
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
    """Root of every error that naspipe raises on purpose.

    It crosses a user's own process pool unchanged, whatever its class is made with. Escape codes
    of terminals, as in messages of other libraries, are left out.
    """

    def __init__(self, *arguments: object) -> None:
        super().__init__(*(_plain(each) if isinstance(each, str) else each for each in arguments))

    def __reduce__(self) -> tuple[Callable[..., NaspipeError], tuple[Any, ...]]:
        return _made_again, (type(self), self.args, vars(self))


_ESCAPES = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)?|[@-Z\\^_])")
"""Of terminals: colours, movements and titles (ECMA-48)."""


def _plain(text: str) -> str:
    return _ESCAPES.sub("", text) if "\x1b" in text else text


def _made_again(
    kind: type[NaspipeError], arguments: tuple[Any, ...], values: Mapping[str, Any]
) -> NaspipeError:
    """An error of another process."""
    error = kind.__new__(kind, *arguments)
    error.__dict__.update(values)
    return error


def reason(error: BaseException) -> str:
    """The type and message of somebody else's error, on one line."""
    if isinstance(error, UsersCodeError):  # which has them on its last
        return str(error).strip().splitlines()[-1][:300]
    text = " ".join(str(error).split())
    hint = next((why for part, why in _HINTS.items() if part in text), "")
    return f"{type(error).__name__}: {text:.300}{hint}" if text else type(error).__name__


_HINTS = {
    "does not require grad and does not have a grad_fn": "; its code takes a gradient of a tensor "
    "that depends on no parameter and no input that requires one, as after detach(), under "
    "torch.no_grad(), of whole numbers or of frozen parameters",
}
"""Hints that are appended to messages of torch that name no cause, by a part of the message."""


class ConfigError(NaspipeError):
    """The user's input cannot be used; raised before anything is written (exit status 2)."""


class UsersCodeError(NaspipeError):
    """The user's code raised something in another process; the message has its traceback."""


class DataError(ConfigError):
    """A data file is missing, damaged or cannot be fetched."""


class NotPreparedError(DataError):
    """A data set was not prepared yet; ``naspipe data prepare`` or the command itself does it."""

    def __init__(self, name: str, root: Path, message: str) -> None:
        super().__init__(message)
        self.name, self.root = name, root


class BlockInputEditedError(NaspipeError):
    """A block changed one of its inputs in place, which would corrupt the block before it."""


class TransportError(NaspipeError):
    """A peer is gone, silent for longer than the deadline, or sent what cannot be read."""


class StorageError(NaspipeError):
    """What a run leaves cannot be written: a full disk, or a directory that is read-only."""


class RunInterruptedError(NaspipeError):
    """The run was asked to end, and did so behind a checkpoint."""

    def __init__(self, signal_number: int, message: str, *, from_elsewhere: bool = False) -> None:
        self.signal_number = signal_number
        self.from_elsewhere = from_elsewhere
        """Whether the signal came to another host, and not to this process."""
        super().__init__(message)


class NotFiniteError(NaspipeError):
    """A loss is infinite or not a number, and the recipe wants the run to stop then."""


class ObserverError(NaspipeError):
    """The user's observer of a run raised an error; the run ended with a checkpoint if possible."""


class StageFailedError(NaspipeError):
    """A stage raised; carries the first cause: the stage, its task, host and traceback.

    Its first line says all but the traceback: ``stage 1 failed in 0.3F@1 block 4 (layer 3.1) on
    HOST: RuntimeError: why``. The ``cause`` is the traceback's last line, unless it is given.
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
    """The first steps of a run do not have the bits of its plain loop, or a score of a search does
    not have the bits of its plain network; nothing was published."""


class LogError(NaspipeError):
    """A recorded file is damaged in its middle, where nothing can be repaired."""


class InvariantError(NaspipeError):
    """A rule of the schedule was broken: a bug in naspipe, never the user's doing."""


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
