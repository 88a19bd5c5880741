"""What a run is made of, besides the names in its definition: recorded first and compared later.

These are the structures of layers, the values that the user's functions capture, and digests of the
source files. A resume with other layers or values is refused; other files are reported.
"""

from __future__ import annotations

import functools
import hashlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from inspect import isclass, ismodule
from pathlib import Path
from types import FunctionType, MethodType, SimpleNamespace
from typing import Any, NamedTuple

import search_spaces
from naspipe.checks.sketched import structures
from naspipe.config.blocks import CopyOf, Elastic
from naspipe.config.errors import ConfigError
from naspipe.config.settings import GivenCode
from naspipe.config.space import Space
from naspipe.config.user_code import full_name, is_same_name, is_users_module
from naspipe.jobs.losses import described, text_of
from naspipe.jobs.workload import Workload
from naspipe.store.compare import MadeOf, as_made_of, first_unlike, otherwise_written, read_made_of
from naspipe.store.files import write_json
from naspipe.store.labels import describe_space
from naspipe.store.run_directory import RunDirectory


def code_digests(workloads: Sequence[Workload]) -> dict[str, str]:
    """A digest of each file, by its path from its package on, or its name without a package."""
    return dict(sorted((dict(_own().values()) | users_digests(workloads)).items()))


def users_digests(workloads: Sequence[Workload]) -> dict[str, str]:
    """The same for the user's own files, without libraries; files of one name are joined."""
    found: dict[str, str] = {}
    for path in sorted(set(_users_files(workloads))):
        found[path.name] = f"{found.get(path.name, '')} {_digest(path)}".strip()
    return found


def code_digest(digests: Mapping[str, str]) -> str:
    return _hash(
        "\0".join(f"{name}\0{digest}" for name, digest in sorted(digests.items())).encode()
    )


@cache
def _own() -> dict[Path, tuple[str, str]]:
    """Name and digest of each file of naspipe, read once because imported code does not change."""
    folders = (Path(__file__).parents[1], *map(Path, search_spaces.__path__))
    return {
        path: (str(path.relative_to(folder.parent)), _digest(path))
        for folder in folders
        for path in folder.rglob("*.py")
    }


def _digest(path: Path) -> str:
    return _hash(path.read_bytes())


def _hash(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=8).hexdigest()


def _users_files(workloads: Sequence[Workload]) -> Iterator[Path]:
    for workload in workloads:
        blocks = workload.space.blocks
        makers = [factory for block in blocks for factory in block.candidates]
        elastic = [block for block in blocks if isinstance(block, Elastic)]
        makers += [block.apply for block in elastic if block.apply]
        # With "slice" a cut says what is stepped; otherwise it matters to exports alone.
        makers += [block.cut for block in elastic if block.cut and block.step == "slice"]
        parts = getattr(workload.data, "made_of", ())
        metrics = workload.metrics.values()
        for thing in (workload.data, *parts, workload.loss, *metrics, *map(_made_by, makers)):
            # Code that is compiled by exec may be of no module.
            name = getattr(thing, "__module__", type(thing).__module__) or ""
            if is_users_module(name):
                file = Path(getattr(sys.modules.get(name), "__file__", None) or "")
                if file.is_file():  # not for code from stdin or a prompt
                    yield file


def _made_by(factory: Any) -> Any:
    """What a factory calls, or the module that it copies."""
    while isinstance(factory, partial):
        factory = factory.original if isinstance(factory, CopyOf) else factory.func
    return factory


_LONGEST = 80
_DEEPEST = 6
"""Maximum nesting depth of a value that is written as a text."""


class Captured(NamedTuple):
    """What a function captures."""

    values: dict[str, str]
    """A text for each value, by its name."""
    untold: dict[str, str]
    """The types of values that cannot be written as a text, by name."""


def captured(function: object) -> Captured:
    """Captured values; those of captured functions are named as in ``scale.factor``."""
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
    """A text that differs for different values; empty if there is none.

    Objects of a user's classes are written with their attributes.
    """
    text = _text(value, 0)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}...{_hash(text.encode())}"


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


_FEW = 3
"""A line lists no more names than these."""


def record_made_of(directory: RunDirectory, workload: Workload) -> None:
    write_json(directory.made_of, _made_of(workload))


def check_made_of(directory: RunDirectory, workload: Workload) -> None:
    """A run that is resumed must be made of what it began with, as far as that is recorded."""
    earlier = read_made_of(directory.made_of)
    if earlier is not None:
        now = as_made_of(_made_of(workload), directory.made_of)
        if found := first_unlike(describe_space(workload.space), earlier, now):
            aside = f" ({found.aside})" if found.aside else ""
            raise ConfigError(
                f"{directory.path} is another run: its {found.what} was {found.one}, and is now "
                f"{found.other}{aside}; resume it as it was defined, or choose a new --run-dir"
            )


def changed_code_note(directory: RunDirectory, workload: Workload) -> str | None:
    """A line about the user's files that have changed since a run began."""
    earlier = read_made_of(directory.made_of)
    if earlier is None:
        return None
    names = otherwise_written(earlier, earlier._replace(code=users_digests([workload])))
    if not names:
        return None
    more = f" and {len(names) - _FEW} more" if len(names) > _FEW else ""
    return (
        f"{directory.path} was begun with other code: {', '.join(names[:_FEW])}{more} changed "
        f"since; where that changes what is computed, no plain loop has the bits of this run"
    )


def check_run_layers(directory: RunDirectory, space: Space) -> None:
    """The space that is given for a run must have the layers that the run trained.

    ``space`` has the labels and candidates of the run's.
    """
    if (earlier := read_made_of(directory.made_of)) is not None:
        now = as_made_of({**structures(space), "captured": {}, "files": {}}, directory.made_of)
        _expect(directory, describe_space(space), earlier, now)


def check_run_loss(directory: RunDirectory, space: Space, loss: object) -> None:
    """The loss that is given for a run must have the same name and captured values.

    A run with one of naspipe's losses for a teacher's outputs may be judged by any other.
    """
    recorded, found = directory.read_manifest()["definition"]["loss"], described(loss)
    is_of_lessons = recorded.startswith("naspipe.") and not found.startswith("naspipe.")
    if not (is_of_lessons or is_same_name(found, recorded)):
        raise ConfigError(
            f"run {directory.path}: expected its loss as it was trained, {recorded}, found "
            f"{found}; give the run's own"
        )
    if (earlier := read_made_of(directory.made_of)) is not None:
        own = {} if is_of_lessons else {"loss": captured(loss).values}
        now = earlier._replace(captured=own)
        _expect(directory, describe_space(space), earlier, now)


def _expect(directory: RunDirectory, space: Mapping[str, Any], was: MadeOf, now: MadeOf) -> None:
    if found := first_unlike(space, was, now):
        aside = f" ({found.aside})" if found.aside else ""
        raise ConfigError(
            f"run {directory.path}: expected its {found.what} as it was trained, {found.one}, "
            f"found {found.other}{aside}; give the run's own"
        )


def untold_notes(workloads: Sequence[Workload]) -> list[str]:
    """A line about each function that captures a value that no resume can compare."""
    notes = []
    for whose, function in (pair for workload in workloads for pair in _functions(workload)):
        if untold := captured(function).untold:
            said = ", ".join(f"{name} (of type {kind})" for name, kind in sorted(untold.items()))
            notes.append(
                f"{whose}: a resume cannot tell whether {said} is the same, so keep it as it "
                f"is; captured numbers, texts and tensors are compared"
            )
    return list(dict.fromkeys(notes))


def _made_of(workload: Workload) -> dict[str, Any]:
    values = {whose: captured(function).values for whose, function in _functions(workload)}
    code = users_digests([workload])
    return {**structures(workload.space), "captured": values, "files": code}


def _functions(workload: Workload) -> Iterator[tuple[str, object]]:
    """The user's functions, each with what it is for."""
    yield "loss", workload.loss
    yield from ((f"metric {name}", each) for name, each in sorted(workload.metrics.items()))
    if isinstance(workload.recipe.optimizer, GivenCode):
        yield "optimizer", workload.recipe.optimizer.code
