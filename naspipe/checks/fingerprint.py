"""What a run is made of beside its definition's names: recorded as it begins, the same later."""

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
from naspipe.config.blocks import CopyOf
from naspipe.config.errors import ConfigError
from naspipe.config.settings import GivenCode
from naspipe.config.space import Elastic, Space
from naspipe.config.user_code import full_name, is_same_name, is_users_module
from naspipe.jobs.losses import described, text_of
from naspipe.jobs.workload import Workload
from naspipe.store.compare import MadeOf, as_made_of, first_unlike, otherwise_written, read_made_of
from naspipe.store.files import write_json
from naspipe.store.labels import describe_space
from naspipe.store.run_directory import RunDirectory


def code_digests(workloads: Sequence[Workload]) -> dict[str, str]:
    """Of each file, by its name: from its package on, or from its folder where it has none."""
    return dict(sorted((dict(_own().values()) | users_digests(workloads)).items()))


def users_digests(workloads: Sequence[Workload]) -> dict[str, str]:
    """The same of the user's own files, without libraries; those of one name count together."""
    found: dict[str, str] = {}
    for path in sorted(set(_users(workloads, only_own=True))):
        found[path.name] = f"{found.get(path.name, '')} {_digest(path)}".strip()
    return found


def code_digest(digests: Mapping[str, str]) -> str:
    """One for all of them."""
    text = "\0".join(f"{name}\0{digest}" for name, digest in sorted(digests.items()))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


@cache
def _own() -> dict[Path, tuple[str, str]]:
    """Name and digest of each file of naspipe's: once, as what is imported stays as it was."""
    folders = (Path(__file__).parents[1], *map(Path, search_spaces.__path__))
    return {
        path: (str(path.relative_to(folder.parent)), _digest(path))
        for folder in folders
        for path in folder.rglob("*.py")
    }


def _digest(path: Path) -> str:
    return hashlib.blake2b(path.read_bytes(), digest_size=8).hexdigest()


def _users(workloads: Sequence[Workload], only_own: bool = False) -> Iterator[Path]:
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
            # What is compiled by exec may be of no module.
            name = getattr(thing, "__module__", type(thing).__module__) or ""
            if only_own and not is_users_module(name):
                continue
            module = sys.modules.get(name)
            file = Path(getattr(module, "__file__", None) or "")
            if file.is_file():  # not so of what is read from stdin, or typed
                yield file


def _made_by(factory: Any) -> Any:
    """What a factory calls, or the module that it copies."""
    while isinstance(factory, partial):
        factory = factory.original if isinstance(factory, CopyOf) else factory.func
    return factory


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


_FEW = 3
"""Names that a line says."""


def record_made_of(directory: RunDirectory, workload: Workload) -> None:
    """Write what a new run is made of into its directory."""
    write_json(directory.made_of, _made_of(workload))


def check_made_of(directory: RunDirectory, workload: Workload) -> None:
    """A run that goes on must be made of what it began with, as far as it says.

    Raises:
        ConfigError: naming the first layer, or captured value, that is something else.
    """
    earlier = read_made_of(directory.made_of)
    if earlier is None:
        return
    now = as_made_of(_made_of(workload), directory.made_of)
    if found := first_unlike(describe_space(workload.space), earlier, now):
        aside = f" ({found.aside})" if found.aside else ""
        raise ConfigError(
            f"{directory.path} is another run: its {found.what} was {found.one}, and is now "
            f"{found.other}{aside}; resume it as it was defined, or choose a new --run-dir"
        )


def changed_code_note(directory: RunDirectory, workload: Workload) -> str | None:
    """A line about files of the user's that have changed since a run began."""
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
    """A run's space, given anew, must have the layers that the run trained.

    Args:
        directory: the run's.
        space: of the same labels and candidates.

    Raises:
        ConfigError: naming the first layer that is something else.
    """
    if (earlier := read_made_of(directory.made_of)) is not None:
        now = as_made_of({**structures(space), "captured": {}, "files": {}}, directory.made_of)
        _expect(directory, describe_space(space), earlier, now)


def check_run_loss(directory: RunDirectory, space: Space, loss: object) -> None:
    """A run's loss, given anew, must be of the same name and capture what it captured.

    One of naspipe's own for lessons needs a teacher's outputs, so any other may judge its run.

    Raises:
        ConfigError: naming the loss, or the first captured value that is something else.
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
    """A line about each function that captures what no later resume can compare."""
    notes = []
    for workload in workloads:
        for whose, function in _functions(workload):
            if untold := captured(function).untold:
                said = ", ".join(
                    f"{name} (of type {kind})" for name, kind in sorted(untold.items())
                )
                notes.append(
                    f"{whose}: a resume cannot tell whether {said} is the same, so keep it as it "
                    f"is; captured numbers, texts and tensors are compared"
                )
    return list(dict.fromkeys(notes))


def _made_of(workload: Workload) -> dict[str, Any]:
    said: Mapping[str, Any] = {
        whose: captured(function).values for whose, function in _functions(workload)
    }
    code = users_digests([workload])
    return {**structures(workload.space), "captured": said, "files": code}


def _functions(workload: Workload) -> Iterator[tuple[str, object]]:
    """Those of the user's, by whose they are."""
    yield "loss", workload.loss
    yield from ((f"metric {name}", each) for name, each in sorted(workload.metrics.items()))
    if isinstance(workload.recipe.optimizer, GivenCode):
        yield "optimizer", workload.recipe.optimizer.code
