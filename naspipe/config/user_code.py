"""A user's own code: found by name, and what it raises as one line that says where it broke."""

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
    """Turn whatever is raised into a ConfigError about ``what``; naspipe's own errors pass.

    Raises:
        ConfigError: with the type and message of the error, and its file and line.
    """
    try:
        yield
    except NaspipeError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{what} {reason(error)}{_place(error)}") from error


class called:  # noqa: N801
    """Add a line to whatever the user's code raises, that says what was called.

    Args:
        what: the line; worked out only where something is raised.
    """

    __slots__ = ("_what",)

    def __init__(self, what: Callable[[], str]) -> None:
        self._what = what

    def __enter__(self) -> None:
        """Nothing is done."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        """Add the line."""
        if error is not None:
            add_call(error, self._what)


def add_call(error: BaseException, what: Callable[[], str]) -> None:
    """Add a line to what the user's code raised, that says what was called; see :class:`called`."""
    if isinstance(error, Exception) and not isinstance(error, NaspipeError):
        error.add_note(what())


def users_traceback(error: BaseException) -> str:
    """The traceback of an error of the user's code, without the frames of naspipe and torch.

    What naspipe itself raised is left whole; where it says in its own words what the user's code
    did, these come behind the user's frames.
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
    """Whether it came out of what :func:`called` names, or out of code that is the user's."""
    if getattr(error, "__notes__", ()):
        return True
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    own = [file for file in files if not file.startswith((*_LIBRARIES, "<frozen"))]
    return bool(own) and not own[-1].startswith(_NASPIPE)


def _leave_out_ours(found: traceback.TracebackException | None, seen: set[int]) -> None:
    """Of an error and of those that it came from."""
    if found is None or id(found) in seen:
        return
    seen.add(id(found))
    left = [each for each in found.stack if not each.filename.startswith((_NASPIPE, *_TORCH))]
    found.stack[:] = left
    _leave_out_ours(found.__cause__, seen)
    _leave_out_ours(found.__context__, seen)


def check_blocks(name: Any, blocks: Sequence[Any], kinds: tuple[type, ...]) -> None:
    """A space has a name and blocks, each of which must be one of some kinds.

    Raises:
        ConfigError: for the first that is not, with what it should have been.
    """
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
    """Each must be a function, or a class, that makes a module; a module is none, though callable.

    Raises:
        ConfigError: for the first that is not, by its place among them.
    """
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
    """Whether a module is the user's own: neither naspipe's, nor a library's, nor Python's."""
    if name == "__main__":
        return True
    if name.split(".")[0] in _NOT_THE_USERS:
        return False
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    is_installed = file.startswith((*_LIBRARIES, _NASPIPE)) or _INSTALLED & set(Path(file).parts)
    return bool(file) and not is_installed


def full_name(thing: object) -> str:
    """A name of a function, or of an object's class, as in ``mymodule.collate``; no addresses."""
    named = thing if hasattr(thing, "__qualname__") else type(thing)
    return f"{module_of(named)}.{getattr(named, '__qualname__', '')}"


def module_of(named: object) -> str:
    """Where a function or class is from; of the script that was started, what imports call it."""
    module: str = getattr(named, "__module__", "") or ""
    if module != "__main__":
        return module
    script = sys.modules[module]
    spec, file = getattr(script, "__spec__", None), getattr(script, "__file__", None)
    if spec:
        return str(spec.name)
    return Path(file).stem if file and Path(file).is_file() else module


def is_same_name(found: Any, recorded: Any) -> bool:
    """Whether a name, or what else is recorded of the user's code, is what was recorded.

    What stands in the script that is run is named after ``__main__``; imported, after the script.
    """
    if found == recorded:
        return True
    names = sorted((str(found), str(recorded)))
    main, _, name = names[0].partition(_MAIN)
    return not main and bool(name) and names[1].endswith(f".{name}")


def why_no_source(kind: Any) -> str:
    """Why a user's class or function has no source that can be copied; nothing where it has."""
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
    """What a user means by ``module:attribute``.

    Raises:
        ConfigError: when it cannot be found, or its module cannot be imported.
    """
    module_name, _, attribute = name.partition(":")
    if not attribute or not all(part.isidentifier() for part in module_name.split(".")):
        raise ConfigError(f"{name}: expected module:attribute, as in mymodule:space")
    with users_code(f"{name}: expected a module that can be imported, found"):
        try:
            return getattr(_import(module_name), attribute)
        except (ModuleNotFoundError, AttributeError) as error:
            if not _is_about(error, module_name):
                raise
            raise ConfigError(
                f"{name}: expected module:attribute, importable from {Path.cwd().name}/ or "
                f"installed; {error}"
            ) from error


def _import(module_name: str) -> ModuleType:
    """Import a module that is installed or in the working directory."""
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(module_name)
    finally:
        sys.path.pop(0)


def _is_about(error: ModuleNotFoundError | AttributeError, module_name: str) -> bool:
    """Whether the module itself or its attribute is missing, not something that it uses."""
    if isinstance(error, ModuleNotFoundError):
        return error.name is not None and f"{module_name}.".startswith(f"{error.name}.")
    return error.obj is sys.modules.get(module_name)


def _place(error: BaseException) -> str:
    """File and line of the innermost frame that is the user's, or nothing where there is none."""
    if isinstance(error, SyntaxError):
        return ""  # its message ends with them
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((_NASPIPE, "<frozen", *_TORCH))
    ]
    own = [frame for frame in frames if not frame.filename.startswith(_LIBRARIES)]
    for frame in (own or frames)[-1:]:
        return f" ({frame.filename}:{frame.lineno})"
    return ""
