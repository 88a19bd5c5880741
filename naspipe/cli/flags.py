"""Options of the command line that are made from the declarations of settings."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from naspipe.cli.ports import Options
from naspipe.config.errors import ConfigError
from naspipe.config.settings import Setting, declared


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
