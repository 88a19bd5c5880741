"""How a user's functions are written, and the module globals they read: by name, as digests.

A loss with another body trains other bits under the same name. Libraries are left out, and so are
comments, docstrings and names of local variables.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Iterable, Iterator
from contextlib import suppress
from types import CodeType, FunctionType, MethodType, ModuleType

from naspipe.core.blocks.read_variables import instructions
from naspipe.core.user_code import full_name, is_users_module, module_of
from naspipe.runtime.jobs.captured import told

_PUTS = {"append", "add", "update", "setdefault", "extend", "insert", "pop", "popitem", "clear"}
"""Methods that change what they are called on."""

_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...))


def reached_code(roots: Iterable[object]) -> dict[str, str]:
    """By full names, all that can be told of functions and classes that roots lead to.

    They lead on by what they capture, by the globals that they read, and by what classes have.
    What any of them writes is left out of the globals: it is a counter, or a cache.
    """
    reached = _Reached()
    for root in roots:
        reached.follow(root)
    return reached.texts()


def outside_values(roots: Iterable[object]) -> dict[str, str]:
    """By full names, the values that functions and classes read from outside.

    What one of them may change itself is left out, by its name or in its place: a cache.
    """
    reached = _Reached()
    for root in roots:
        reached.follow(root)
    return reached.values()


class _Reached:
    def __init__(self) -> None:
        self._may_change: set[str] = set()
        """Names of containers that are read where something is put into one."""
        self._seen: dict[int, object] = {}
        self._codes: dict[str, set[str]] = {}
        self._values: dict[str, set[str]] = {}
        self._written: set[str] = set()

    def texts(self) -> dict[str, str]:
        """Of functions digests; several of one name are told together."""
        kept = {
            name: texts
            for name, texts in self._values.items()
            if name.rpartition(".")[2] not in self._written
        }
        found = sorted({**kept, **self._codes}.items())
        return {name: " ".join(sorted(texts)) for name, texts in found}

    def values(self) -> dict[str, str]:
        """What is read from outside and not changed in the same place."""
        gone = self._written | self._may_change
        return {
            name: " ".join(sorted(texts))
            for name, texts in sorted(self._values.items())
            if name.rpartition(".")[2] not in gone
        }

    def follow(self, root: object) -> None:
        """To all that it leads to; by a list of what is left, as users' code may be deep."""
        left = [root]
        while left:
            thing = left.pop()
            if id(thing) not in self._seen:
                self._seen[id(thing)] = thing
                left.extend(self._next(thing))

    def _next(self, thing: object) -> Iterator[object]:
        if isinstance(thing, functools.partial):
            yield from (thing.func, *thing.args, *thing.keywords.values())
        elif isinstance(thing, MethodType):
            yield from (thing.__func__, thing.__self__)
        elif isinstance(thing, staticmethod | classmethod):
            yield thing.__func__
        elif isinstance(thing, property):
            yield from (thing.fget, thing.fset)
        elif isinstance(thing, list | tuple):
            yield from thing
        elif isinstance(thing, FunctionType):
            if is_users_module(thing.__module__ or ""):
                yield from self._function(thing)
        elif inspect.isclass(thing):
            yield from self._class(thing)
        elif is_users_module(type(thing).__module__):
            yield type(thing)
            for name, value in getattr(thing, "__dict__", {}).items():
                yield from self._value(f"{full_name(thing)}.{name}", value)

    def _function(self, function: FunctionType) -> Iterator[object]:
        code = function.__code__
        self._codes.setdefault(full_name(function), set()).add(_digest(code, function.__doc__))
        yield from function.__defaults__ or ()
        yield from (function.__kwdefaults__ or {}).values()
        read, attributes = self._names(function)
        known = {**function.__globals__, **_enclosed(function)}
        for name in sorted(read & known.keys()):
            value = known[name]
            if not isinstance(value, ModuleType):
                yield from self._value(f"{module_of(function)}.{name}", value)
            elif is_users_module(value.__name__):
                for attribute in sorted(attributes & vars(value).keys()):
                    yield from self._value(f"{value.__name__}.{attribute}", vars(value)[attribute])

    def _names(self, function: FunctionType) -> tuple[set[str], set[str]]:
        """Of variables that it reads from outside, and of attributes; what it writes is kept."""
        read, attributes, before, puts = set[str](), set[str](), "", False
        for each in instructions(function.__code__):
            kind, name = each.opname, str(each.argval)
            if kind in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF"):
                read.add(name)
            elif kind in ("LOAD_ATTR", "LOAD_METHOD"):
                attributes.add(name)
            is_made = function.__name__ == "__init__" and "self" in before
            puts |= kind in ("STORE_SUBSCR", "DELETE_SUBSCR") or name in _PUTS
            if kind == "STORE_GLOBAL" or (kind == "STORE_ATTR" and not is_made):
                self._written.add(name)
            before = f"{kind} {each.argval}" if kind.startswith("LOAD_FAST") else ""
        if puts:
            self._may_change |= read | attributes
        return read, attributes

    def _class(self, kind: type) -> Iterator[object]:
        for each in kind.__mro__:
            if is_users_module(each.__module__):
                for name, value in vars(each).items():
                    if not name.startswith("__") or callable(value):
                        yield from self._value(f"{full_name(each)}.{name}", value)

    def _value(self, name: str, value: object) -> Iterator[object]:
        if not callable(value) and (text := told(value)):
            self._values.setdefault(name, set()).add(text)
        yield value


def _enclosed(function: FunctionType) -> dict[str, object]:
    """What it captures, by name; a variable that has no value yet is left out."""
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):
            found[name] = cell.cell_contents
    return found


def _digest(code: CodeType, says: str | None) -> str:
    return hashlib.blake2b(repr(_parts(code, says)).encode(), digest_size=8).hexdigest()


def _parts(code: CodeType, says: str | None = None) -> list[object]:
    """Everything that decides what it does; a docstring is its first constant."""
    constants = list(code.co_consts)
    if says is not None and constants and constants[0] == says:
        constants[0] = None
    return [
        code.co_code.hex(), code.co_exceptiontable.hex(), code.co_names,
        [_constant(each) for each in constants],
    ]  # fmt: skip


def _constant(value: object) -> object:
    if isinstance(value, CodeType):
        return _parts(value)
    if isinstance(value, frozenset):  # in another order in every process
        return sorted(map(repr, value))
    if isinstance(value, tuple):
        return [_constant(each) for each in value]
    return repr(value) if isinstance(value, _PLAIN) else type(value).__name__
