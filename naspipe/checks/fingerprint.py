"""The parts of a run that its definition only names: recorded at the start and compared later.

These are the structures of layers, the values that user functions capture, and digests of source
files. A resume with different layers or values is refused; different files are reported.
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
    """Return a digest per file, by path relative to the package's parent, or by file name."""
    return dict(sorted((dict(_own().values()) | users_digests(workloads)).items()))


def users_digests(workloads: Sequence[Workload]) -> dict[str, str]:
    """Return digests of the user's own files, without libraries; those of one name are joined."""
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
    """Return name and digest of naspipe's files; cached because imported code does not change."""
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
        # With "slice", a cut determines which entries are stepped; otherwise only exports use it.
        makers += [block.cut for block in elastic if block.cut and block.step == "slice"]
        parts = getattr(workload.data, "made_of", ())
        metrics = workload.metrics.values()
        for thing in (workload.data, *parts, workload.loss, *metrics, *map(_made_by, makers)):
            # Code that was compiled by exec may have no module.
            name = getattr(thing, "__module__", type(thing).__module__) or ""
            if is_users_module(name):
                file = Path(getattr(sys.modules.get(name), "__file__", None) or "")
                if file.is_file():  # false for code from stdin or a prompt
                    yield file


def _made_by(factory: Any) -> Any:
    """Return what a factory calls, or the module that it copies."""
    while isinstance(factory, partial):
        factory = factory.original if isinstance(factory, CopyOf) else factory.func
    return factory


_LONGEST = 80
_DEEPEST = 6
"""Maximum nesting depth of a value that is converted to text."""


class Captured(NamedTuple):
    """Values that a function captures."""

    values: dict[str, str]
    """Texts of the values by name."""
    untold: dict[str, str]
    """Types of values that cannot be converted to text, by name."""


def captured(function: object) -> Captured:
    """Return captured values; those of captured functions have names such as ``scale.factor``."""
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
            except ValueError:  # the cell of a variable without a value yet
                continue
        usual = thing.__defaults__ or ()
        names = code.co_varnames[: code.co_argcount]
        yield from zip(names[len(names) - len(usual) :], usual, strict=True)
        yield from sorted((thing.__kwdefaults__ or {}).items())


def told(value: Any) -> str:
    """Return a text that differs for different values; empty if there is none.

    The text of an instance of a user's class includes its attributes.
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
"""Maximum number of names that a line lists."""


def record_made_of(directory: RunDirectory, workload: Workload) -> None:
    write_json(directory.made_of, _made_of(workload))


def check_made_of(directory: RunDirectory, workload: Workload) -> None:
    """Check that a resumed run has the recorded layers and captured values."""
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
    """Return a line about the user's files that have changed since a run started."""
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
    """Check that a given space has the layers that a run trained.

    ``space`` has the same labels and candidates as the run's space.
    """
    if (earlier := read_made_of(directory.made_of)) is not None:
        now = as_made_of({**structures(space), "captured": {}, "files": {}}, directory.made_of)
        _expect(directory, describe_space(space), earlier, now)


def check_run_loss(directory: RunDirectory, space: Space, loss: object) -> None:
    """Check that a given loss has the name and captured values of a run's loss.

    For a run with one of naspipe's distillation losses, any other loss is allowed.
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
    """Return a line about each function that captures values which a resume cannot compare."""
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
    """Yield the user's functions, each with its role."""
    yield "loss", workload.loss
    yield from ((f"metric {name}", each) for name, each in sorted(workload.metrics.items()))
    if isinstance(workload.recipe.optimizer, GivenCode):
        yield "optimizer", workload.recipe.optimizer.code
