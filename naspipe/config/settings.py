"""Declarations of settings, from which flags, documentation and checks are derived.

    window: int = setting(16, "sequence IDs that may be in flight.", at_least(1), example="3")

Classes that hold such fields are frozen dataclasses derived from :class:`Checked`. A class may hold
groups of settings, as ``Execution`` does. Users write a setting by its *key*, which does not depend
on the group: in ``--set key=value``, recipe files, Python and manifests. So a field may move to
another group, and old manifests can still be read.

To add a setting, declare a field in ``execution.py`` (how a run is carried out) or in ``recipe.py``
(how every step is computed), and nothing else; then regenerate ``docs/settings.md`` with
``scripts/write_settings.py``.
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
    """A constraint on a setting's value."""

    text: str
    """As in "expected 1 or more"."""
    holds: Callable[[Any], bool]
    words: tuple[str, ...] = ()
    """All allowed values, if they are a list of words."""


def at_least(least: float) -> Allowed:
    return Allowed(f"{least:g} or more", lambda value: bool(value >= least))


def between(least: float, most: float, unit: str = "") -> Allowed:
    text = f"{least:g} to {most:g} {unit}".rstrip()
    return Allowed(text, lambda value: bool(least <= value <= most))


def above(bound: float, at_most: float = math.inf) -> Allowed:
    text = f"more than {bound:g}" + (f", at most {at_most:.15g}" if at_most < math.inf else "")
    return Allowed(text, lambda value: bool(bound < value <= at_most))


def share(what: str) -> Allowed:
    return Allowed(f"{what} from 0 to below 1", lambda value: bool(0 <= value < 1))


def norm() -> Allowed:
    return Allowed(
        "a finite norm, or 0 for none", lambda value: math.isfinite(value) and bool(value >= 0)
    )


def one_of(*words: str) -> Allowed:
    return Allowed(" or ".join(words), lambda value: value in words, words)


def named_in(words: Sequence[str]) -> Allowed:
    """Allow the words of a list that may be extended later; ``words`` are the present ones."""
    return Allowed(" or ".join(words), lambda value: value in words, tuple(words))


def like(pattern: str, text: str) -> Allowed:
    return Allowed(text, lambda value: re.fullmatch(pattern, value) is not None)


def byte_count() -> Allowed:
    return Allowed("bytes, as in 2GB", lambda value: not value or parse_bytes(value) > 0)


def budget() -> Allowed:
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
    """Gives a setting its own option on the command line: its key, with dashes."""

    metavar: str = ""
    default: Any = None
    """Default on the command line, if it differs from that of the setting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A declared setting."""

    help: str
    """Help text, the setting's only description. ``--help`` shows its first sentence."""
    allowed: tuple[Allowed, ...]
    key: str = ""
    """The key that users write; by default, the field's name."""
    unit: str = ""
    flag: Flag | None = None
    example: str = ""
    """A value other than the default, in the form that users write."""
    name: str = ""
    kind: type = str
    default: Any = None
    group: str = ""
    """The field that holds its group, if any."""
    is_of_recipes: bool = False
    """True if recipe files may contain it although it changes no bit."""

    @property
    def brief(self) -> str:
        return self.help.partition(". ")[0].removesuffix(".")

    def read(self, text: str) -> Any:
        """Parse a text of the command line; constraints are not checked."""
        try:
            return _TRUTHS[text.lower()] if self.kind is bool else self.kind(text)
        except (KeyError, ValueError):
            raise ConfigError(f"expected {self.kind_name}, found {text!r:.80}") from None

    @property
    def option(self) -> str:
        """Option of the command line; for a setting that is true by default, the negation."""
        name = self.key.replace("_", "-")
        return f"--no-{name}" if self.default is True else f"--{name}"

    @property
    def usual(self) -> Any:
        """The command line's default."""
        has_own = self.flag is not None and self.flag.default is not None
        return self.flag.default if self.flag and has_own else self.default

    @property
    def kind_name(self) -> str:
        return _KIND_NAMES[self.kind]

    def is_of_kind(self, value: object) -> bool:
        """Return True if a value is of the setting's kind; an integer also counts as a number."""
        kinds = (int, float) if self.kind is float else self.kind
        return isinstance(value, kinds) and isinstance(value, bool) == (self.kind is bool)

    def check(self, value: Any) -> None:
        expected = "" if self.is_of_kind(value) else self.kind_name
        for each in self.allowed:
            expected = expected or ("" if each.holds(value) else each.text)
        if not expected and isinstance(value, float) and not math.isfinite(value):
            expected = "a finite number"
        if expected:
            raise ConfigError(f"{self.key}: expected {expected}, found {value!r:.80}")


REQUIRED: Any = MISSING
"""Used instead of a default, for a field that has none."""


def setting(
    default: T,
    help: str,
    *allowed: Allowed,
    key: str = "",
    unit: str = "",
    flag: Flag | None = None,
    example: str = "",
) -> T:
    """Declare a setting as a field."""
    declared = Setting(help=help, allowed=allowed, key=key, unit=unit, flag=flag, example=example)
    found: T = field(default=default, metadata={_SETTING: declared})
    return found


def group(default: T, title: str, *, is_of_recipes: bool = False) -> T:
    """Declare a group of settings as a field."""
    found: T = field(default=default, metadata={_GROUP: (title, is_of_recipes)})
    return found


def declared(node: type) -> Mapping[str, Setting]:
    """Return the settings of a class and of its groups by key, in the order of declaration."""
    return _declared(node)


@cache
def _declared(node: type) -> Mapping[str, Setting]:
    found: dict[str, Setting] = {}
    names = set(groups(node))
    for each in fields(node):
        own: list[Setting] = []
        if _GROUP in each.metadata:
            _, is_of_recipes = each.metadata[_GROUP]
            own = [
                replace(inner, group=each.name, is_of_recipes=is_of_recipes)
                for inner in declared(type(each.default)).values()
            ]
        elif _SETTING in each.metadata:
            bare = each.metadata[_SETTING]
            default = None if each.default is MISSING else each.default
            key, kind = bare.key or each.name, _KINDS[each.type]
            own = [replace(bare, name=each.name, key=key, kind=kind, default=default)]
        for one in own:
            if one.key in found or one.key in names:
                raise InvariantError(f"{node.__name__}: the key {one.key} is declared twice")
            found[one.key] = one
    return found


def groups(node: type) -> dict[str, str]:
    """Return the titles of a class's groups, by name."""
    return {each.name: each.metadata[_GROUP][0] for each in fields(node) if _GROUP in each.metadata}


def check(node: Any) -> None:
    """Check the settings of a class; its groups check their own."""
    for each in declared(type(node)).values():
        if not each.group:
            each.check(getattr(node, each.name))


class Checked:
    """Base class of dataclasses of settings, which checks them when an object is made."""

    __slots__ = ()

    def __post_init__(self) -> None:
        check(self)


def unknown_key(key: str, known: Iterable[str]) -> ConfigError:
    """Return an error for an unknown key, with the most similar key, or otherwise all keys."""
    known = list(known)
    hint = did_you_mean(key, known)
    rest = "docs/settings.md lists them all" if hint else f"expected one of {', '.join(known)}"
    return ConfigError(f"{key}: unknown key{hint}; {rest}")


def expect(is_good: bool, what: str, expected: str, found: object) -> None:
    """Raise a ConfigError about a setting unless ``is_good``."""
    if not is_good:
        raise ConfigError(f"{what}: expected {expected}, found {found!r:.80}")


def is_finite(value: Any) -> bool:
    """Return True if neither the value nor anything in it is infinite or NaN."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return all(map(is_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


class GivenCode(str):
    """The name of a function or class, such as ``mymodule:Lion``, with the function itself.

    Manifests, comparisons and copies have the name only; nothing is pickled. Stage processes are
    forked, so they have the function, too.
    """

    code: Callable[..., Any]

    def __new__(cls, code: Callable[..., Any], name: str = "") -> GivenCode:
        made = super().__new__(cls, name or name_of(code))
        made.code = code
        return made

    def __deepcopy__(self, memo: object) -> str:
        return str(self)

    def __str__(self) -> str:
        return self[:]


def name_of(code: Callable[..., Any]) -> str:
    """Return ``module:name`` of a function, class, object's class or partial with arguments."""
    if isinstance(code, partial):
        given = [*map(repr, code.args), *(f"{k}={v!r}" for k, v in sorted(code.keywords.items()))]
        return f"{name_of(code.func)}({', '.join(given)})"
    named = code if hasattr(code, "__qualname__") else type(code)
    return f"{module_of(named)}:{named.__qualname__}"
