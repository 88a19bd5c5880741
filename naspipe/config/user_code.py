"""User code: import it by name, and report its errors in one line with their location."""

from __future__ import annotations

import importlib
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from naspipe.config.errors import ConfigError, NaspipeError, UsersCodeError, reason

_NASPIPE = str(Path(__file__).parent.parent)
_LIBRARIES = tuple(
    sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")
)
_INSTALLED = {"site-packages", "dist-packages"}
_NOT_THE_USERS = ("naspipe", "search_spaces", "torch", "nni")
_MAIN = "__main__."
_TORCH = tuple(f"{folder}/torch/" for folder in _LIBRARIES)


@contextmanager
def users_code(what: str) -> Iterator[None]:
    """Convert exceptions other than NaspipeErrors to a ConfigError with file and line."""
    try:
        yield
    except NaspipeError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{what} {reason(error)}{_place(error)}") from error


class called:  # noqa: N801
    """Context manager that adds a note to any exception of the user's code.

    Args:
        what: makes the note; called only if something is raised.
    """

    __slots__ = ("_what",)

    def __init__(self, what: Callable[[], str]) -> None:
        self._what = what

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        if error is not None:
            add_call(error, self._what)


def add_call(error: BaseException, what: Callable[[], str]) -> None:
    """Add a note about the call to an exception of the user's code; see :class:`called`."""
    if isinstance(error, Exception) and not isinstance(error, NaspipeError):
        error.add_note(what())


def users_traceback(error: BaseException) -> str:
    """Return the traceback of an error of the user's code, without the frames of naspipe and torch.

    Errors of naspipe itself keep all frames. If naspipe raised its own error because of the user's,
    that error is appended to the user's traceback.
    """
    if isinstance(error, UsersCodeError):
        return f"{error}\n"
    cause = error.__cause__
    if isinstance(error, NaspipeError) and cause is not None and _is_users(cause):
        return f"{users_traceback(cause)}\n{type(error).__name__}: {error}\n"
    found = traceback.TracebackException.from_exception(error)
    if _is_users(error):
        seen: set[int] = set()
        _leave_out_ours(found, seen)
    return "".join(found.format())


def _is_users(error: BaseException) -> bool:
    if getattr(error, "__notes__", ()):
        return True
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    own = [file for file in files if not file.startswith((*_LIBRARIES, "<frozen"))]
    return bool(own) and not own[-1].startswith(_NASPIPE)


def _leave_out_ours(found: traceback.TracebackException | None, seen: set[int]) -> None:
    if found is None or id(found) in seen:
        return
    seen.add(id(found))
    left = [each for each in found.stack if not each.filename.startswith((_NASPIPE, *_TORCH))]
    found.stack[:] = left
    _leave_out_ours(found.__cause__, seen)
    _leave_out_ours(found.__context__, seen)


def check_blocks(name: Any, blocks: Sequence[Any], kinds: tuple[type, ...]) -> None:
    """Check that a space has a name and blocks of the given kinds."""
    if not isinstance(name, str):
        raise ConfigError(
            f"a space: expected a name first, as in npp.Space('mine', [...]), found a "
            f"{type(name).__name__}"
        )
    if not blocks:
        raise ConfigError(f"space {name}: expected at least one block, found none")
    for place, found in enumerate(blocks):
        if isinstance(found, kinds):
            continue
        kind, todo = type(found).__name__, "npp.Block([...]) or npp.Shared('name', ...)"
        if isinstance(found, list | tuple):
            todo = "npp.Block([...]) around its candidates"
        elif hasattr(found, "named_parameters"):
            todo = f"npp.Shared('name', lambda: {kind}(...))"
        elif callable(found):
            todo = "npp.Shared('name', ...) around what makes a layer"
        raise ConfigError(
            f"space {name}: expected npp.Block or npp.Shared in place {place}, found a {kind}; "
            f"write {todo}"
        )


def check_factories(where: str, candidates: Sequence[Any]) -> None:
    """Check that each is a function or class that makes a module, and not a module itself."""
    for number, factory in enumerate(candidates):
        is_module = hasattr(factory, "named_parameters") and not isinstance(factory, type)
        if is_module or not callable(factory):
            kind = type(factory).__name__
            todo = f"wrap it: lambda: {kind}(...)" if is_module else "give what makes a module"
            raise ConfigError(
                f"{where}: expected candidate {number} to be a factory, found "
                f"{'the module' if is_module else 'a value of type'} {kind}; {todo}"
            )


def is_users_module(name: str) -> bool:
    """Return True if a module is the user's own, not part of naspipe, a library or Python."""
    if name == "__main__":
        return True
    if name.split(".")[0] in _NOT_THE_USERS:
        return False
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    is_installed = file.startswith((*_LIBRARIES, _NASPIPE)) or _INSTALLED & set(Path(file).parts)
    return bool(file) and not is_installed


def full_name(thing: object) -> str:
    """Return the name of a function or object's class, such as ``mymodule.collate``."""
    named = thing if hasattr(thing, "__qualname__") else type(thing)
    return f"{module_of(named)}.{getattr(named, '__qualname__', '')}"


def module_of(named: object) -> str:
    """Return the module of a function or class; for the started script, its name when imported."""
    module: str = getattr(named, "__module__", "") or ""
    if module != "__main__":
        return module
    script = sys.modules[module]
    spec, file = getattr(script, "__spec__", None), getattr(script, "__file__", None)
    if spec:
        return str(spec.name)
    return Path(file).stem if file and Path(file).is_file() else module


def is_same_name(found: Any, recorded: Any) -> bool:
    """Return True if a name of the user's code is the recorded one.

    Code of the started script is named after ``__main__``, and after the script when imported.
    """
    if found == recorded:
        return True
    names = sorted((str(found), str(recorded)))
    main, _, name = names[0].partition(_MAIN)
    return not main and bool(name) and names[1].endswith(f".{name}")


def why_no_source(kind: Any) -> str:
    """Return why the source of a user's class or function cannot be copied; empty if it can."""
    module = kind.__module__
    if not is_users_module(module):
        return ""
    if "<locals>" in kind.__qualname__:
        return "is defined inside a function"
    file = getattr(sys.modules.get(module), "__file__", None) or "<none>"
    if file.startswith("<"):  # "<stdin>"
        return "is defined in a notebook or at a prompt"
    return ""


def import_attribute(name: str) -> Any:
    """Import ``module:attribute``, from the working directory or an installed package."""
    module_name, _, attribute = name.partition(":")
    if not attribute or not all(part.isidentifier() for part in module_name.split(".")):
        raise ConfigError(f"{name}: expected module:attribute, as in mymodule:space")
    with users_code(f"{name}: expected a module that can be imported, found"):
        try:
            return getattr(_import(module_name), attribute)
        except (ModuleNotFoundError, AttributeError) as error:
            if isinstance(error, AttributeError):
                is_missing = error.obj is sys.modules.get(module_name)
            else:  # the module itself, not one of its imports
                missing = error.name
                is_missing = missing is not None and f"{module_name}.".startswith(f"{missing}.")
            if not is_missing:
                raise
            raise ConfigError(
                f"{name}: expected module:attribute, importable from {Path.cwd().name}/ or "
                f"installed; {error}"
            ) from error


def _import(module_name: str) -> ModuleType:
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(module_name)
    finally:
        sys.path.pop(0)


def _place(error: BaseException) -> str:
    """Return the file and line of the innermost frame of the user, or an empty text."""
    if isinstance(error, SyntaxError):
        return ""  # its message ends with file and line
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((_NASPIPE, "<frozen", *_TORCH))
    ]
    own = [frame for frame in frames if not frame.filename.startswith(_LIBRARIES)]
    for frame in (own or frames)[-1:]:
        return f" ({frame.filename}:{frame.lineno})"
    return ""
