"""How a setting is declared, once, and what is read from its declaration.

    window: int = setting(16, "sequence IDs that may be under way.", at_least(1), example="3")

Classes that hold such fields are frozen dataclasses and call :func:`check` from ``__post_init__``.
A class may hold groups, each such a class, as ``Execution`` does. Users write a setting by its
*key*, which belongs to no group: in ``--set key=value``, recipe files, Python and manifests; so a
field may move to another group and old manifests are still read.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cache
from typing import Any, NamedTuple, TypeVar

from naspipe.core.errors import ConfigError, InvariantError
from naspipe.core.settings.allowed import Allowed
from naspipe.core.wording.known_keywords import did_you_mean

T = TypeVar("T")

_KIND_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
_KINDS: dict[Any, type] = {kind: kind for kind in _KIND_NAMES}
_KINDS |= {kind.__name__: kind for kind in _KIND_NAMES}
_TRUTHS = {"true": True, "false": False, "1": True, "0": False}
_SETTING, _GROUP = "setting", "group"


class Flag(NamedTuple):
    """That a setting has an option of its own on the command line: its key, with dashes."""

    metavar: str = ""
    default: Any = None
    """What a command takes where the option is left out, if that is not the setting's default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One declared field."""

    help: str
    """Its first sentence is what ``--help`` shows; nothing else describes the setting."""
    allowed: tuple[Allowed, ...]
    key: str = ""
    """As users write it; the field's name unless another is declared."""
    unit: str = ""
    flag: Flag | None = None
    example: str = ""
    """A value other than the default, as users write it."""
    name: str = ""
    kind: type = str
    default: Any = None
    group: str = ""
    """The field that holds its group, where there are groups."""
    is_of_recipes: bool = False
    """Whether recipe files may name it although it changes no bit."""

    @property
    def brief(self) -> str:
        """The first sentence, without its full stop."""
        return self.help.partition(". ")[0].removesuffix(".")

    def read(self, text: str) -> Any:
        """A value from the text of a command line.

        Raises:
            ConfigError: for a text that is no such value; bounds are not looked at.
        """
        try:
            return _TRUTHS[text.lower()] if self.kind is bool else self.kind(text)
        except (KeyError, ValueError):
            raise ConfigError(f"expected {self.kind_name}, found {text!r:.80}") from None

    @property
    def option(self) -> str:
        """Of the command line, where it has one of its own; for what is true, it says no."""
        name = self.key.replace("_", "-")
        return f"--no-{name}" if self.default is True else f"--{name}"

    @property
    def usual(self) -> Any:
        """What a command takes where nothing is said."""
        has_own = self.flag is not None and self.flag.default is not None
        return self.flag.default if self.flag and has_own else self.default

    @property
    def kind_name(self) -> str:
        """What kind of value it has, in words."""
        return _KIND_NAMES[self.kind]

    def is_of_kind(self, value: object) -> bool:
        """Whether a value is of the setting's kind; whole numbers are numbers, too."""
        kinds = (int, float) if self.kind is float else self.kind
        return isinstance(value, kinds) and isinstance(value, bool) == (self.kind is bool)

    def check(self, value: Any) -> None:
        """Refuse a value that is not allowed.

        Raises:
            ConfigError: in one line.
        """
        expected = "" if self.is_of_kind(value) else self.kind_name
        for each in self.allowed:
            expected = expected or ("" if each.holds(value) else each.text)
        if not expected and isinstance(value, float) and not math.isfinite(value):
            expected = "a finite number"
        if expected:
            raise ConfigError(f"{self.key}: expected {expected}, found {value!r:.80}")


def declaration(
    help: str,
    *allowed: Allowed,
    key: str = "",
    unit: str = "",
    flag: Flag | None = None,
    example: str = "",
) -> Mapping[str, Any]:
    """A setting's declaration, as the metadata of a field that has no default."""
    found = Setting(help=help, allowed=allowed, key=key, unit=unit, flag=flag, example=example)
    return {_SETTING: found}


def setting(default: T, help: str, *allowed: Allowed, **more: Any) -> T:
    """A field with a default; ``more`` is what :func:`declaration` takes."""
    found: T = field(default=default, metadata=declaration(help, *allowed, **more))
    return found


def group(default: T, title: str, *, is_of_recipes: bool = False) -> T:
    """A field that holds a group of settings."""
    found: T = field(default=default, metadata={_GROUP: (title, is_of_recipes)})
    return found


def declared(node: type) -> Mapping[str, Setting]:
    """The settings of a class and of its groups, by their keys, in the order of declaration.

    Raises:
        InvariantError: when two have the same key, or one has the name of a group.
    """
    return _declared(node)


@cache
def _declared(node: type) -> Mapping[str, Setting]:
    found: dict[str, Setting] = {}
    names = set(groups(node))
    for each in _settings(node):
        if each.key in found or each.key in names:
            raise InvariantError(f"{node.__name__}: the key {each.key} is declared twice")
        found[each.key] = each
    return found


def groups(node: type) -> dict[str, str]:
    """The titles of a class's groups, by their names."""
    return {each.name: each.metadata[_GROUP][0] for each in fields(node) if _GROUP in each.metadata}


def check(node: Any) -> None:
    """Check the settings that a class itself holds; its groups check their own.

    Raises:
        ConfigError: for the first value that is not allowed.
    """
    for each in declared(type(node)).values():
        if not each.group:
            each.check(getattr(node, each.name))


def unknown_key(key: str, known: Iterable[str]) -> ConfigError:
    """What refuses a key that no setting has: with the one that was meant, or else with all."""
    known = list(known)
    hint = did_you_mean(key, known)
    rest = "docs/settings.md lists them all" if hint else f"expected one of {', '.join(known)}"
    return ConfigError(f"{key}: unknown key{hint}; {rest}")


def _settings(node: type) -> Iterable[Setting]:
    for each in fields(node):
        if _GROUP in each.metadata:
            _, is_of_recipes = each.metadata[_GROUP]
            for inner in declared(type(each.default)).values():
                yield replace(inner, group=each.name, is_of_recipes=is_of_recipes)
        elif _SETTING in each.metadata:
            bare = each.metadata[_SETTING]
            yield replace(
                bare,
                name=each.name,
                key=bare.key or each.name,
                kind=_KINDS[each.type],
                default=None if each.default is MISSING else each.default,
            )
