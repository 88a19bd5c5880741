"""Numbers and texts that factories read from around them: as blocks were made, and as they are.

A factory made in a loop reads the loop's variable when it is called, which is when the loop is
over. So what it read as its block was made is kept.
"""

from __future__ import annotations

import dis
import functools
from collections.abc import Iterable, Iterator, Mapping
from types import CodeType, FunctionType
from weakref import WeakKeyDictionary

_PLAIN = (bool, int, float, complex, str, bytes, type(None))

_FIRST: WeakKeyDictionary[FunctionType, Mapping[str, object]] = WeakKeyDictionary()


def keep_reads(factories: Iterable[object]) -> None:
    """Keep what factories read now, of those that are seen for the first time."""
    for factory in factories:
        if (function := _function(factory)) is not None and function not in _FIRST:
            _FIRST[function] = dict(_reads(function))


def changed_reads(factory: object) -> list[tuple[str, object, object]]:
    """Name, value as its block was made, and value now, of each variable where they differ."""
    function = _function(factory)
    before = _FIRST.get(function, {}) if function is not None else {}
    if function is None or not before:
        return []
    now = dict(_reads(function))
    return [
        (name, value, now[name])
        for name, value in before.items()
        if name in now and (type(value), value) != (type(now[name]), now[name])
    ]


def _function(factory: object) -> FunctionType | None:
    while isinstance(factory, functools.partial):
        factory = factory.func
    return factory if isinstance(factory, FunctionType) else None


def _reads(function: FunctionType) -> Iterator[tuple[str, object]]:
    """Variables around a function with plain values, by the names that occur in it."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    for name, cell in cells:
        try:
            value = cell.cell_contents
        except ValueError:  # it has none yet
            continue
        if _is_plain(value):
            yield name, value
    known = function.__globals__
    for name in sorted(globals_read(function.__code__) & known.keys()):
        if _is_plain(known[name]):
            yield name, known[name]


def _is_plain(value: object) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return isinstance(value, _PLAIN)


def globals_read(code: CodeType) -> set[str]:
    """Names of the globals that a function, or one written in it, reads and does not write.

    The names in the code object alone would include those of attributes.
    """
    found, written = set[str](), set[str]()
    for each in _codes(code):
        for instruction in dis.get_instructions(each):
            if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                found.add(str(instruction.argval))
            elif instruction.opname == "STORE_GLOBAL":
                written.add(str(instruction.argval))
    return found - written


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)
