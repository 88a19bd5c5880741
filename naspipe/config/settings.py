"""How a setting is declared, once, and what is read from its declaration.

    window: int = setting(16, "sequence IDs that may be under way.", at_least(1), example="3")

Classes that hold such fields are frozen dataclasses and call :func:`check` from ``__post_init__``.
A class may hold groups, each such a class, as ``Execution`` does. Users write a setting by its
*key*, which belongs to no group: in ``--set key=value``, recipe files, Python and manifests; so a
field may move to another group and old manifests are still read.

A bound is an :class:`Allowed`: a test, and the words in which a refusal says it. A user's function
may stand in the place of a text (:class:`GivenCode`): its name is recorded and compared. Here is
nothing that uses a setting. To add one, declare a field in ``execution.py`` (how a run is carried
out) or in ``recipe.py`` (how every step is taken), nothing else; then write ``docs/settings.md``
anew with ``scripts/write_settings.py``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cache, partial
from typing import Any, NamedTuple, TypeVar

from naspipe.config.errors import ConfigError, InvariantError
from naspipe.config.text import did_you_mean, parse_bytes, parse_subnets
from naspipe.config.user_code import module_of


@dataclass(frozen=True, slots=True)
class Allowed:
    """One bound of a setting."""

    text: str
    """As in "expected 1 or more"."""
    holds: Callable[[Any], bool]
    words: tuple[str, ...] = ()
    """All values that are allowed, where they are a list of words."""


def at_least(least: float) -> Allowed:
    """Numbers from a least one on."""
    return Allowed(f"{least:g} or more", lambda value: bool(value >= least))


def between(least: float, most: float, unit: str = "") -> Allowed:
    """Numbers from a least one to a greatest one, both allowed."""
    text = f"{least:g} to {most:g} {unit}".rstrip()
    return Allowed(text, lambda value: bool(least <= value <= most))


def above(bound: float, at_most: float = math.inf) -> Allowed:
    """Numbers greater than a bound, and not greater than another."""
    text = f"more than {bound:g}" + (f", at most {at_most:.15g}" if at_most < math.inf else "")
    return Allowed(text, lambda value: bool(bound < value <= at_most))


def share(what: str) -> Allowed:
    """Numbers from 0 to below 1."""
    return Allowed(f"{what} from 0 to below 1", lambda value: bool(0 <= value < 1))


def norm() -> Allowed:
    """The norm of a gradient, of which 0 stands for none."""
    return Allowed(
        "a finite norm, or 0 for none", lambda value: math.isfinite(value) and bool(value >= 0)
    )


def one_of(*words: str) -> Allowed:
    """Some words."""
    return Allowed(" or ".join(words), lambda value: value in words, words)


def named_in(words: Sequence[str]) -> Allowed:
    """Words of a list to which others may be added later; ``words`` has those of now."""
    return Allowed(" or ".join(words), lambda value: value in words, tuple(words))


def like(pattern: str, text: str) -> Allowed:
    """Texts of a form."""
    return Allowed(text, lambda value: re.fullmatch(pattern, value) is not None)


def byte_count() -> Allowed:
    """Bytes, or nothing."""
    return Allowed("bytes, as in 2GB", lambda value: not value or parse_bytes(value) > 0)


def budget() -> Allowed:
    """Bytes, a number of subnets, or nothing."""
    return Allowed(
        "bytes, as in 512MiB, or a number of subnets, as in 3x",
        lambda value: not value or parse_bytes(value) > 0 or parse_subnets(value) > 0,
    )


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


def expect(is_good: bool, what: str, expected: str, found: object) -> None:
    """Refuse a value of a setting.

    Raises:
        ConfigError: unless ``is_good``.
    """
    if not is_good:
        raise ConfigError(f"{what}: expected {expected}, found {found!r:.80}")


def is_finite(value: Any) -> bool:
    """Whether neither the value nor anything in it is infinite or not a number."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return all(map(is_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


class GivenCode(str):
    """The name of a function or class, as in ``mymodule:Lion``, and the function itself.

    Manifests, comparisons and copies have the name alone: nothing is pickled. Stage processes are
    forked, so they have the function, too.
    """

    code: Callable[..., Any]

    def __new__(cls, code: Callable[..., Any], name: str = "") -> GivenCode:
        """With a name of its own, or that of the function."""
        made = super().__new__(cls, name or name_of(code))
        made.code = code
        return made

    def __deepcopy__(self, memo: object) -> str:
        return str(self)

    def __str__(self) -> str:
        return self[:]


def name_of(code: Callable[..., Any]) -> str:
    """``module:name`` of a function or class; of a partial with its arguments, of an object with
    its class's.
    """
    if isinstance(code, partial):
        given = [*map(repr, code.args), *(f"{k}={v!r}" for k, v in sorted(code.keywords.items()))]
        return f"{name_of(code.func)}({', '.join(given)})"
    named = code if hasattr(code, "__qualname__") else type(code)
    return f"{module_of(named)}:{named.__qualname__}"
