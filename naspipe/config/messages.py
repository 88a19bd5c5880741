"""Messages for the command line, translated for readers in Python.

    use --set norms=deferred, or --stages 2     on the command line
    use norms='deferred', or stages=2           in Python

Messages are written with options. Public functions of ``naspipe`` report keywords instead
(:func:`says_keywords`), and so do the notes of a run that was started from Python.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from naspipe.config.definition import Definition
from naspipe.config.errors import NaspipeError, in_one_line
from naspipe.config.execution import Execution
from naspipe.config.recipe import Recipe
from naspipe.config.settings import declared
from naspipe.config.text import check_keywords

P = ParamSpec("P")
T = TypeVar("T")

_ARGUMENTS = {
    "--teacher": "teacher=naspipe.Teacher(...)",
    "--momentum": "teacher=naspipe.Momentum(...)",
    "--validation": "held_out=",
    "--max-flops": "limits={'flops': ...}",
    "--max-params": "limits={'params': ...}",
    "--max-latency-ms": "limits={'latency_ms': ...}",
    **{
        f"--{name}": f"{name.replace('-', '_')}="
        for name in (
            "best", "budget", "calibrate", "data", "data-dir", "ema", "name", "others", "recipe",
            "run-dir", "score", "validate",
        )
    },
    "--output": "directory=",
    "--resume": "resume=True",
    "--resume-if-exists": "resume='if_exists'",
    "--onnx": "onnx=True",
}  # fmt: skip
"""Python's counterparts of options that no setting declares."""

_COMMAND = re.compile(r"(?:naspipe [a-z]+|torchrun|pip install) [^,;:)\n']*")
"""A shell command, which is not translated."""
_SET = re.compile(
    r"""--set[ ](?P<quote>"?)(?P<key>[a-z_]+(?:\.\w+)?)
        (?:=(?P<value>\[[^]]*\]|[\w.:-]+(?:\([^)]*\))?))?(?P=quote)""",
    re.VERBOSE,
)
_VALUES = r"\d[\w.]*|[A-Z][A-Z_:]*|cpu|cuda|auto|paper|loss|top1|bleu|synflow|naswot|profiled"
_OPTION = re.compile(rf"(?P<option>--[a-z][a-z0-9-]*)(?: (?P<value>{_VALUES})(?![\w-]))?")
_BEFORE_COLON = re.compile(r"\b([a-z_]+)=:")
"""A keyword at the beginning of a message, which has no value."""
_NUMBER = re.compile(r"-?\d+(\.\d+)?(e-?\d+)?|\[.*\]|True|False|[A-Z][A-Z_:]*|\.\.\.")
"""Text that is written without quotes in Python."""


def in_python(text: str) -> str:
    """Return a message with Python's keywords; commands and tracebacks in it are kept."""
    message, mark, traceback = text.partition("\nTraceback")
    found, place = [], 0
    for command in _COMMAND.finditer(message):
        found += [_translated(message[place : command.start()]), command[0]]
        place = command.end()
    return "".join([*found, _translated(message[place:]), mark, traceback])


def says_keywords(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function so that errors name Python's keywords and unknown keywords are rejected.

    A second signal, which ends a run at once, is reported in one line.
    """

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        check_keywords(function, f"naspipe.{function.__name__}", kwargs, len(args))
        try:
            return function(*args, **kwargs)
        except NaspipeError as error:
            error.args = (in_python(str(error)),)
            raise
        except KeyboardInterrupt as error:
            if not error.args:  # raised by the user's code or Python
                raise
            raise in_one_line(KeyboardInterrupt(in_python(str(error)))) from None

    return called


def _translated(text: str) -> str:
    return _BEFORE_COLON.sub(r"\1:", _OPTION.sub(_keyword, _SET.sub(_setting, text)))


def _setting(match: re.Match[str]) -> str:
    """Translate ``--set KEY=VALUE``, or ``--set KEY``."""
    key, value = match["key"], _literal(match["value"] or "...")
    table, _, inner = key.partition(".")
    if table in ("data", "momentum"):  # settings of objects, without a keyword in Python
        return match[0]
    if table == "optimizer" and inner:
        return f"optimizer_options={{{inner!r}: {value}}}"
    if inner:
        return f"settings={{{key!r}: {value}}}"
    return f"{key}={value if match['value'] else ''}"


def _keyword(match: re.Match[str]) -> str:
    """Translate an option, with its value if there is one."""
    option, value = match["option"], match["value"]
    found = _ARGUMENTS.get(option)
    if found is None:
        for node in (Definition, Recipe, Execution):
            for each in declared(node).values():
                if found is None and each.flag and each.option == option:
                    found = f"{each.key}={not each.default if each.kind is bool else ''}"
    if found is None:
        return match[0]
    if not value:
        return found
    if found.endswith("="):
        is_object = option in _ARGUMENTS and value == "MODULE:FUNCTION"
        return found + _literal("FUNCTION" if is_object else value)
    return found.replace("...", value) if found.endswith("(...)") else f"{found} {value}"


def _literal(text: str) -> str:
    """Return a value of the command line as a Python literal."""
    return text if _NUMBER.fullmatch(text) else repr({"true": True, "false": False}.get(text, text))
