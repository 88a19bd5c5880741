"""Messages in the words of whoever reads them: options of the command line, or Python's keywords.

    use --set norms=deferred, or --stages 2     on the command line
    use norms='deferred', or stages=2           in Python

Messages are written with options. What ``import naspipe`` hands out says them as keywords
(:func:`says_keywords`), as do the notes of a run that was started there.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

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
"""Options that no setting declares, by what stands for them in Python."""

_COMMAND = re.compile(r"(?:naspipe [a-z]+|torchrun|pip install) [^,;:)\n']*")
"""A command for a shell, which is one in Python, too."""
_SET = re.compile(
    r"""--set[ ](?P<quote>"?)(?P<key>[a-z_]+(?:\.\w+)?)
        (?:=(?P<value>\[[^]]*\]|[\w.:-]+(?:\([^)]*\))?))?(?P=quote)""",
    re.VERBOSE,
)
_VALUES = r"\d[\w.]*|[A-Z][A-Z_:]*|cpu|cuda|auto|paper|loss|top1|bleu|synflow|naswot|profiled"
_OPTION = re.compile(rf"(?P<option>--[a-z][a-z0-9-]*)(?: (?P<value>{_VALUES})(?![\w-]))?")
_OBJECTS = {"MODULE:FUNCTION": "FUNCTION"}
"""What stands for a value where Python takes the object itself."""
_BEFORE_COLON = re.compile(r"\b([a-z_]+)=:")
"""A keyword that a message begins with has no value behind it."""
_NUMBER = re.compile(r"-?\d+(\.\d+)?(e-?\d+)?|\[.*\]|True|False|[A-Z][A-Z_:]*|\.\.\.")
"""What Python reads as it stands, or what stands for it in a message."""


def in_python(text: str) -> str:
    """A message as Python's keywords say it; a traceback in it stays as it is."""
    said, mark, traceback = text.partition("\nTraceback")
    found, place = "", 0
    for command in _COMMAND.finditer(said):
        found += _translated(said[place : command.start()]) + command[0]
        place = command.end()
    return found + _translated(said[place:]) + mark + traceback


def says_keywords(function: Callable[P, T]) -> Callable[P, T]:
    """The function, whose errors are said in Python's keywords, and which knows its own.

    A second signal, which ends a run at once, is said in one line.
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
            if not error.args:  # the user's own, or Python's
                raise
            raise in_one_line(KeyboardInterrupt(in_python(str(error)))) from None

    return called


def _translated(text: str) -> str:
    return _BEFORE_COLON.sub(r"\1:", _OPTION.sub(_keyword, _SET.sub(_setting, text)))


def _setting(match: re.Match[str]) -> str:
    """What stands for ``--set KEY=VALUE``, or for its key alone."""
    key, value = match["key"], _literal(match["value"] or "...")
    table, _, inner = key.partition(".")
    if table in ("data", "momentum"):  # which belong to objects, and have no setting in Python
        return match[0]
    if table == "optimizer" and inner:
        return f"optimizer_options={{{inner!r}: {value}}}"
    if inner:
        return f"settings={{{key!r}: {value}}}"
    return f"{key}={value if match['value'] else ''}"


def _keyword(match: re.Match[str]) -> str:
    """What stands for an option, and for its value where one is behind it."""
    option, value = match["option"], match["value"]
    said = _ARGUMENTS.get(option) or _declared(option)
    if said is None:
        return match[0]
    if said.endswith("="):
        value = _OBJECTS.get(value, value) if option in _ARGUMENTS else value
        return said + _literal(value) if value else said
    if said.endswith("(...)") and value:
        return said.replace("...", value)
    return f"{said} {value}" if value else said


def _declared(option: str) -> str | None:
    """Of a setting that has an option of its own."""
    for node in (Definition, Recipe, Execution):
        for each in declared(node).values():
            if each.flag and each.option == option:
                return f"{each.key}={not each.default if each.kind is bool else ''}"
    return None


def _literal(text: Any) -> str:
    """A value of the command line as Python writes it."""
    return text if _NUMBER.fullmatch(text) else repr({"true": True, "false": False}.get(text, text))
