"""Options of the command line, and lists of all settings, made from the declarations of settings.

The lists are those of ``naspipe train --help`` and of ``docs/settings.md``.
"""

from __future__ import annotations

import argparse
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from naspipe.config.definition import DATA_SIZES, MOMENTUM, Definition, Execution, Recipe
from naspipe.config.errors import ConfigError
from naspipe.config.settings import Setting, declared, groups

# Options


class Options(Protocol):
    """A parser, or a part of one with a title of its own."""

    def add_argument(self, *names: str, **options: Any) -> argparse.Action: ...


_ENTRY = re.compile(r"(\S+(?: -\S+)*)(?: (?!\[)(\S+?)([?+!]|\.\.\.)?)?(?: \[(.*?)\])? {2,}(.*)")
_KINDS: dict[str, Callable[[str], Any]] = (
    dict.fromkeys(("N", "K", "C", "V", "D", "STEPS"), int)
    | dict.fromkeys(("DIR", "FILE", "RUN", "PATH", "RUN|DIR"), Path)
    | dict.fromkeys(("SECONDS", "MS"), float)
)
"""The kind of an argument without a default, by its metavar; any other is a text."""


def add_options(parser: Options, table: str, **kinds: Callable[[str], Any]) -> None:
    """Declare the arguments of a table.

    Args:
        parser: what they are added to.
        table: a line for each argument, and indented lines that continue its help, as in ::

                run RUN         run directory
                -o --output DIR  directory to write
                --budget N [100]  number of subnets to evaluate
                --set KEY=VALUE...  any setting
                --quiet         do not show progress

            Two spaces or more precede the help. An option without a metavar and a default is a
            flag; ``...`` collects a list, ``!`` marks an option as required, and ``?`` and ``+``
            are those of argparse. A default in brackets is appended to the help unless it is empty.
        kinds: what makes a value of a text, by destination, if neither the type of the default nor
            the metavar says it.
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
    """The settings that have an option of their own: those of some keys, or all."""
    found = {key: each for key, each in declared(node).items() if each.flag}
    return [found[key] for key in keys or found]


def add_flags(
    parser: Options,
    settings: Iterable[Setting],
    defaults: Mapping[str, Any] | None = None,
    words: Mapping[str, str] | None = None,
) -> None:
    """Declare an option for each of some settings.

    Args:
        parser: what they are added to.
        settings: each with a flag.
        defaults: of this command, where they are others. With them an option that is left out has
            its default; without, it is None, so that one can see what is given.
        words: by the key of an option, a word that it takes beside the setting's values.
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
    """The settings whose options have a value, by their keys."""
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


_HELP_WIDTH = 100
_PAGE_WIDTH = 150
_INTRODUCTION = (
    "This page is generated from the declarations of the settings (`scripts/write_settings.py`): "
    "the recipe in `naspipe/config/recipe.py`, the execution in `naspipe/config/execution.py` and "
    "the definition in `naspipe/config/definition.py`. `--set key=value` changes any setting "
    "except those of the definition; some settings also have a command-line option of their own. "
    "In Python, settings have the same keys, as keyword arguments or in a mapping: "
    '`npp.train(..., window=8, passes="sandwich:2", settings={"rule.stem": "lag(2)"})`, '
    "`npp.Execution(stages=2, window=8)`. Manifests use the same keys. Each entry shows the "
    "default value after =, if there is one, and the allowed values in parentheses."
)
_OTHERS = """\
- `optimizer.OPTION`: further argument of the optimizer. Example: `--set optimizer.momentum=0.9`.
- `parameter_groups`: parameters with their own optimizer options; see [optimizers](optimizers.md).
  Example: `--set 'parameter_groups=[{"match": ["bias", "norm"], "weight_decay": 0}]'`.
- `rule.SHARED_LAYER`: rule of a shared layer: exact, frozen, lag(K) or every(M); see
  [rules](rules.md) for which rule to use. Example: `--set "rule.stem=lag(8)"`.
"""


def key_list(execution: type = Execution) -> str:
    """The keys of ``--set`` in a few lines, for help."""
    lines = ["settings: --set KEY=VALUE; see docs/settings.md for a description of each"]
    for title, settings in _sections(execution):
        others = (
            ("optimizer.OPTION", "parameter_groups", "rule.SHARED_LAYER")
            if title == "recipe"
            else ()
        )
        keys = [*settings, *others]
        lines += textwrap.wrap(
            f"{title}: {', '.join(keys)}",
            _HELP_WIDTH,
            initial_indent="  ",
            subsequent_indent="    ",
        )
    return "\n".join(lines) + "\n"


def page(execution: type = Execution) -> str:
    """The text of ``docs/settings.md``."""
    parts = [
        "# Settings\n\n",
        textwrap.fill(_INTRODUCTION, _PAGE_WIDTH, break_on_hyphens=False),
        "\n\n## Definition of a run, in addition to its space, data and recipe\n\n",
        *map(_entry, declared(Definition).values()),
    ]
    for title, settings in _sections(execution):
        if title == "recipe":
            parts += ["\n## Recipe: how each step is trained\n\n", *_entries(settings), _OTHERS]
        elif title == "data":
            parts += ["\n## Batch sizes\n\n", *_entries(settings)]
        elif title == "momentum":
            parts += ["\n## Momentum teacher\n\n", *_entries(settings)]
            parts.append(
                "\n## Execution: how a run is carried out, without effect on its results\n"
            )
        else:
            parts += [f"\n### {title.capitalize()}\n\n", *_entries(settings)]
    return "".join(parts)


def _sections(execution: type) -> Iterator[tuple[str, Mapping[str, Setting]]]:
    yield "recipe", declared(Recipe)
    yield "data", DATA_SIZES
    yield "momentum", MOMENTUM
    known = declared(execution)
    for name, title in groups(execution).items():
        yield title, {key: each for key, each in known.items() if each.group == name}


def _entries(settings: Mapping[str, Setting]) -> list[str]:
    return [_entry(each) for each in settings.values()]


def _entry(setting: Setting) -> str:
    option = f", `{setting.option}`" if setting.flag else ""
    bounds = "; ".join(each.text for each in setting.allowed) or setting.kind_name
    said = ", ".join(text for text in (bounds, setting.unit) if text)
    example = f" Example: `--set {setting.key}={setting.example}`." if setting.example else ""
    return (
        textwrap.fill(
            f"- `{setting.key}{_usual(setting)}`{option} ({said}): {setting.help}{example}",
            _PAGE_WIDTH,
            subsequent_indent="  ",
            break_on_hyphens=False,
            break_long_words=False,
        )
        + "\n"
    )


def _usual(setting: Setting) -> str:
    """The default value, if there is one."""
    value = setting.usual
    if value is None:
        return ""
    if setting.kind is float:
        return f"={value:g}"
    return f"={value}".lower() if setting.kind is bool else f"={value}"
