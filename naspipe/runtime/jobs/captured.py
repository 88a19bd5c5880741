"""What a user's function captures: values of a closure, of defaults, of a partial's arguments.

A closure with another value trains other bits under the same name.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Mapping
from inspect import isclass, ismodule
from types import FunctionType, MethodType, SimpleNamespace
from typing import Any, NamedTuple

from naspipe.config.user_code import full_name, is_users_module
from naspipe.runtime.jobs.loss_values import text_of

_LONGEST = 80
_DEEPEST = 6
"""Of what is in what."""


class Captured(NamedTuple):
    """Values by their names, and of which of them no more than their types can be told."""

    values: dict[str, str]
    untold: dict[str, str]
    """Their types."""


def captured(function: object) -> Captured:
    """By names; of a function in a function as in ``scale.factor``. Objects say nothing."""
    found = Captured({}, {})
    _gather(function, "", found, set())
    return found


def _gather(thing: object, prefix: str, found: Captured, seen: set[int]) -> None:
    if id(thing) in seen:
        return
    seen.add(id(thing))
    for name, value in _held(thing):
        name = f"{prefix}{name}"
        if isinstance(value, FunctionType | MethodType | functools.partial):
            inner: Any = value
            while isinstance(inner, functools.partial):
                inner = inner.func
            found.values[name] = full_name(inner)
            _gather(value, f"{name}.", found, seen)
        elif text := told(value):
            found.values[name] = text
        else:
            found.untold[name] = type(value).__name__
            found.values[name] = f"of type {found.untold[name]}"


def _held(thing: object) -> Iterator[tuple[str, Any]]:
    if isinstance(thing, functools.partial):
        yield from ((str(place), value) for place, value in enumerate(thing.args))
        yield from sorted(thing.keywords.items())
        yield from _held(thing.func)
    elif isinstance(thing, MethodType):
        yield from _held(thing.__func__)
    elif isinstance(thing, FunctionType):
        code = thing.__code__
        for name, cell in zip(code.co_freevars, thing.__closure__ or (), strict=True):
            try:
                yield name, cell.cell_contents
            except ValueError:  # of a variable that has no value yet
                continue
        usual = thing.__defaults__ or ()
        names = code.co_varnames[: code.co_argcount]
        yield from zip(names[len(names) - len(usual) :], usual, strict=True)
        yield from sorted((thing.__kwdefaults__ or {}).items())


def told(value: Any) -> str:
    """A value as a text that is another one for another value; empty for what cannot be told.

    Objects of a user's classes go by their attributes.
    """
    text = _text(value, 0)
    if len(text) <= _LONGEST:
        return text
    return f"{text[:_LONGEST]}...{hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}"


def _text(value: Any, depth: int) -> str:
    if depth > _DEEPEST:
        return ""
    if ismodule(value):
        return value.__name__
    if isclass(value):
        return full_name(value)
    if isinstance(value, list | tuple):
        parts = [_text(each, depth + 1) for each in value]
        return f"[{', '.join(parts)}]" if all(parts) else ""
    if isinstance(value, Mapping):
        return _pairs(value, "{}", depth)
    if text := text_of(value):
        return text
    if is_users_module(type(value).__module__) or isinstance(value, SimpleNamespace):
        return full_name(value) + _pairs(vars(value), "()", depth) if vars(value) else ""
    return ""


def _pairs(values: Mapping[Any, Any], around: str, depth: int) -> str:
    pairs = [(str(key), _text(each, depth + 1)) for key, each in values.items()]
    if not all(text for _, text in pairs):
        return ""
    said = ", ".join(f"{key}: {text}" for key, text in sorted(pairs))
    return f"{around[0]}{said}{around[1]}"
