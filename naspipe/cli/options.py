"""Options of the command line, from tables of text and from the declarations of settings."""

from __future__ import annotations

import argparse
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from naspipe.config.definition import DATA_SIZES, MOMENTUM
from naspipe.config.errors import ConfigError
from naspipe.config.execution import Execution
from naspipe.config.recipe import Recipe
from naspipe.config.settings import Setting, declared, groups

# Options


class Options(Protocol):
    """A parser, or an argument group of a parser."""

    def add_argument(self, *names: str, **options: Any) -> argparse.Action: ...


_ENTRY = re.compile(r"(\S+(?: -\S+)*)(?: (?!\[)(\S+?)([?+!]|\.\.\.)?)?(?: \[(.*?)\])? {2,}(.*)")
_KINDS: dict[str, Callable[[str], Any]] = (
    dict.fromkeys(("N", "K", "C", "V", "D", "STEPS"), int)
    | dict.fromkeys(("DIR", "FILE", "RUN", "PATH", "RUN|DIR"), Path)
    | dict.fromkeys(("SECONDS", "MS"), float)
)
"""The type of an argument without a default, by its metavar; all others are text."""


def add_options(parser: Options, table: str, **kinds: Callable[[str], Any]) -> None:
    """Declare the arguments of a table.

    Args:
        parser: the parser or group that gets the arguments.
        table: a line for each argument, and indented lines that continue its help, as in ::

                run RUN         run directory
                -o --output DIR  directory to write
                --budget N [100]  number of subnets to evaluate
                --set KEY=VALUE...  any setting
                --quiet         do not show progress

            Two spaces or more precede the help. An option without a metavar and a default is a
            flag; ``...`` collects a list, ``!`` marks an option as required, and ``?`` and ``+``
            are those of argparse. A default in brackets is appended to the help unless it is empty.
        kinds: functions that parse a value, by destination, if neither the type of the default nor
            the metavar determines it.
    """
    entries: list[str] = []
    for line in inspect.cleandoc(table).splitlines():
        if line.startswith(" "):
            entries[-1] += " " + line.strip()
        else:
            entries.append(line)
    for entry in entries:
        found = _ENTRY.fullmatch(entry)
        assert found is not None, entry
        names, metavar, count, default, text = found.groups()
        options: dict[str, Any] = {"help": text.replace("%", "%%")}
        if default:
            options["help"] += f" (default: {default})"
        kind = kinds.get(names.split()[-1].lstrip("-").replace("-", "_"))
        if metavar is None and default is None:
            options["action"] = "store_true"
        else:
            if kind is None and default and re.fullmatch("[0-9]+", default):
                kind = int
            kind = kind or (str if default else _KINDS.get(metavar, str))
            options |= {"type": kind, "metavar": metavar}
            if default is not None:
                options["default"] = kind(default)
        if count == "...":
            options |= {"action": "append", "default": []}
        elif count == "!":
            options["required"] = True
        elif count:
            options["nargs"] = count
        parser.add_argument(*names.split(), **options)


def flags(node: type, *keys: str) -> list[Setting]:
    """Return the settings that have their own option: those with the given keys, or all."""
    found = {key: each for key, each in declared(node).items() if each.flag}
    return [found[key] for key in keys or found]


def add_flags(
    parser: Options,
    settings: Iterable[Setting],
    defaults: Mapping[str, Any] | None = None,
    words: Mapping[str, str] | None = None,
) -> None:
    """Declare an option for each of some settings.

    ``defaults`` are those defaults of this command that differ from the settings'. If it is None,
    the default of every option is None, so that the caller can see which options are given.
    ``words`` are values that options accept in addition to the settings' values, by key.
    """
    for each in settings:
        default = (defaults or {}).get(each.key, each.usual)
        is_plain = default == "" or isinstance(default, bool)
        shown = "" if is_plain else f" (default: {default})"
        options: dict[str, Any] = {
            "dest": each.key,
            "default": None if defaults is None else default,
            "help": (each.brief + shown).replace("%", "%%"),
        }
        if each.kind is bool:
            options["action"] = "store_false" if each.default else "store_true"
        else:
            word = (words or {}).get(each.key)
            metavar = each.flag.metavar if each.flag and each.flag.metavar else None
            options["type"] = _reader(each, word)
            options["metavar"] = f"{metavar}|{word}" if word else metavar
        parser.add_argument(each.option, **options)


def given(node: type, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the settings whose options have a value, by their keys."""
    found = {each.key: getattr(arguments, each.key, None) for each in flags(node)}
    return {key: value for key, value in found.items() if value is not None}


def _reader(setting: Setting, word: str | None = None) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        try:
            return text if text == word else setting.read(text)
        except ConfigError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read


# Lists of all settings


def key_list(execution: type = Execution) -> str:
    """Return the keys of ``--set`` in a few lines, for help."""
    lines = ["settings: --set KEY=VALUE; see docs/settings.md for a description of each"]
    for title, settings in sections(execution):
        keys = list(settings)
        if title == "recipe":
            keys += ["optimizer.OPTION", "parameter_groups", "rule.SHARED_LAYER"]
        text = f"{title}: {', '.join(keys)}"
        lines += textwrap.wrap(text, 100, initial_indent="  ", subsequent_indent="    ")
    return "\n".join(lines) + "\n"


def sections(execution: type) -> Iterator[tuple[str, Mapping[str, Setting]]]:
    """Yield the settings of the recipe, the data, the momentum teacher and all groups."""
    yield "recipe", declared(Recipe)
    yield "data", DATA_SIZES
    yield "momentum", MOMENTUM
    known = declared(execution)
    for name, title in groups(execution).items():
        yield title, {key: each for key, each in known.items() if each.group == name}
