"""What a user's function captures: values of a closure, of defaults, of a partial's arguments.

A closure with another value trains other bits under the same name.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Mapping
from inspect import isclass, ismodule
from types import FunctionType, MethodType
from typing import Any, NamedTuple

from naspipe.core.user_code import full_name
from naspipe.runtime.jobs.loss_values import text_of

_LONGEST = 80


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
        elif text := _text(value):
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


def _text(value: Any) -> str:
    """Empty for what cannot be told."""
    if ismodule(value):
        return value.__name__
    if isclass(value):
        return full_name(value)
    if isinstance(value, list | tuple):
        parts = list(map(_text, value))
        text = f"[{', '.join(parts)}]" if all(parts) else ""
    elif isinstance(value, Mapping):
        pairs = [(str(key), _text(each)) for key, each in value.items()]
        is_told = all(text for _, text in pairs)
        text = "{" + ", ".join(f"{key}: {text}" for key, text in sorted(pairs)) + "}"
        text = text if is_told else ""
    else:
        text = text_of(value)
    if len(text) <= _LONGEST:
        return text
    return f"{text[:_LONGEST]}...{hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}"
