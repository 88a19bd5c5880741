"""The source that a module's forward needs, collected from the packages of its classes.

Only code that a forward can reach is taken: constructors are omitted, because a layer is rebuilt
from its state and not from its arguments. Of a user's own module, whole statements are taken, with
the names that they need.
"""

from __future__ import annotations

import ast
import copy
import inspect
import sys
from collections.abc import Iterable, Iterator
from importlib.util import resolve_name
from textwrap import indent
from types import FunctionType, ModuleType
from typing import Any

from torch import nn

from naspipe.config.errors import ConfigError
from naspipe.config.user_code import is_users_module, why_no_source
from naspipe.export import standalone

_CONSTRUCTORS = ("__init__", "__new__", "__post_init__")
_DYNAMIC = {"getattr", "setattr", "hasattr", "delattr", "vars"}

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def own_statements(tree: ast.Module, name: str) -> list[ast.stmt]:
    """Return the top-level statements of a module that bind a name, or change its value."""
    return [node for node in tree.body if _touches(node, name)]


def _touches(node: ast.stmt, name: str) -> bool:
    if isinstance(node, Definition):
        return node.name == name
    if isinstance(node, ast.Import | ast.ImportFrom):
        return any((a.asname or a.name.split(".")[0]) == name for a in node.names)
    if isinstance(node, ast.Expr):  # NAME.update(...)
        call = node.value
        return isinstance(call, ast.Call) and _root(call.func) == name
    inner = [each for each in ast.iter_child_nodes(node) if isinstance(each, ast.stmt)]
    for handler in getattr(node, "handlers", ()):
        inner += handler.body
    if any(_touches(each, name) for each in inner):
        return True
    targets = getattr(node, "targets", None) or [getattr(node, "target", None)]
    targets += [item.optional_vars for item in getattr(node, "items", ())]
    return any(_binds(target, name) for target in targets if target is not None)


def _binds(target: ast.AST, name: str) -> bool:
    if isinstance(target, ast.Tuple | ast.List):
        return any(_binds(each, name) for each in target.elts)
    return _root(target) == name


def _root(node: ast.AST) -> str:
    """Return the name that an expression such as ``NAME.part[0]`` begins with."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Starred):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def source_of(node: ast.ImportFrom, module: ModuleType) -> str:
    """Return the name of the module from which a statement in ``module`` imports."""
    package = module.__name__ if hasattr(module, "__path__") else module.__package__
    return resolve_name("." * node.level + (node.module or ""), package)


def imported_by_star(module: ModuleType, tree: ast.Module, name: str) -> ast.ImportFrom | None:
    """Return the import by name equivalent to the ``from ... import *`` that binds a name."""
    for node in reversed(tree.body):
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
            there = vars(sys.modules[source_of(node, module)])
            if name in there and there[name] is getattr(module, name, None):
                return ast.ImportFrom(node.module, [ast.alias(name)], node.level)
    return None


def early_parts(node: ast.stmt) -> Iterator[ast.AST]:
    """Yield the parts of a statement that run immediately, unlike the bodies of functions."""
    if isinstance(node, ast.ClassDef):
        yield from (*node.decorator_list, *node.bases, *node.keywords)
        for part in node.body:
            yield from early_parts(part)
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        yield from node.decorator_list
        yield from (each for each in (*node.args.defaults, *node.args.kw_defaults) if each)
    else:
        yield node


def imports_inside(node: ast.stmt) -> bool:
    """Return True if a statement that is not an import contains one."""
    is_plain = isinstance(node, ast.Import | ast.ImportFrom)
    inner = (isinstance(each, ast.Import | ast.ImportFrom) for each in ast.walk(node))
    return not is_plain and any(inner)


def attributes_read(node: ast.AST) -> tuple[set[str], bool]:
    """Return attributes that code mentions outside constructors, and whether it may read others."""
    found: set[str] = set()
    is_open = False
    waiting = [node]
    while waiting:
        part = waiting.pop()
        if isinstance(part, ast.FunctionDef) and part.name in _CONSTRUCTORS:
            continue
        if isinstance(part, ast.Attribute):
            found.add(part.attr)
            is_open = is_open or part.attr == "__dict__"
        elif isinstance(part, ast.Name):
            is_open = is_open or part.id in _DYNAMIC
        waiting += ast.iter_child_nodes(part)
    return found, is_open


def names_read(node: ast.AST) -> list[str]:
    """Return the names that a statement reads when it runs; annotations are never evaluated."""
    found: dict[str, None] = {}
    skipped: set[int] = set()
    for part in ast.walk(node):
        for annotation in (getattr(part, "annotation", None), getattr(part, "returns", None)):
            if isinstance(annotation, ast.AST):
                skipped.update(map(id, ast.walk(annotation)))
        if isinstance(part, ast.Name) and id(part) not in skipped:
            found[part.id] = None
    return list(found)


# The file that is written


PACKAGES = ("search_spaces", "nni", "naspipe.elastic")
"""Packages whose classes are written out like the user's own; those of others are imported."""

_PREFIXES = tuple(f"{package}." for package in PACKAGES)
_ALWAYS_THERE = ("torch", "safetensors", *sys.stdlib_module_names)
_EVERYWHERE = {"__name__", "__doc__"}
"""Names that every file defines itself."""

_BASES = ("MutableModule", "ParametrizedModule", "ModelSpace")
_ENTRIES = {"forward", "__getitem__", "__len__", "__iter__", "__call__"}


def is_written_out(kind: type) -> bool:
    return _is_copied(kind.__module__)


def _is_copied(module: str) -> bool:
    return f"{module}.".startswith(_PREFIXES) or is_users_module(module)


class _Class:
    """A module's class with the methods that are kept; ``str`` returns its source."""

    def __init__(self, node: ast.ClassDef, module: str) -> None:
        self.module = module
        self.name = node.name
        self.bases = [_plain_base(base) for base in node.bases]
        self.methods = {part.name: part for part in node.body if isinstance(part, ast.FunctionDef)}
        self.kept: set[str] = set()
        self._body = node.body

    def __deepcopy__(self, memo: dict[int, Any]) -> _Class:
        """Copy the set of kept methods; the parsed source never changes and is shared."""
        made = copy.copy(self)
        made.kept = set(self.kept)
        return made

    def __str__(self) -> str:
        body = [_without_text(part) for part in self._body if self._is_kept(part)]
        bases = ", ".join(map(ast.unparse, self.bases))
        lines = "\n\n".join(map(ast.unparse, body)) or "pass"
        return f"class {self.name}({bases}):\n    # From {self.module}.\n{indent(lines, '    ')}"

    def _is_kept(self, part: ast.stmt) -> bool:
        if isinstance(part, ast.FunctionDef):
            return part.name in self.kept
        if isinstance(part, ast.Assign):
            return not names_read(part.value)
        return False


class SourceFile:
    """Classes, and everything that they need, in an order in which they can be defined."""

    def __init__(self) -> None:
        self._imports: dict[str, str] = {}
        self._defined: dict[str, str | _Class] = {}
        self._owners: dict[str, str] = {}
        self._mentioned: set[str] = set()
        """Attributes, of any object, that the code taken so far mentions."""
        self._is_open = False
        """True if some of it may read attributes that it does not mention."""

    @property
    def needs(self) -> set[str]:
        """Packages that the file imports, besides torch, safetensors and the standard library."""
        lines = self._imports.values()
        found = {line.split()[1].partition(".")[0] for line in lines}
        return found.difference(_ALWAYS_THERE)

    def add(self, kind: Any) -> str:
        """Add a class or a function, and return its name in the file.

        Raises:
            ConfigError: if it cannot be extracted from its module.
        """
        module = sys.modules[kind.__module__]
        if is_users_module(kind.__module__):
            why = why_no_source(kind)
            if why or getattr(module, kind.__name__, None) is not kind:
                raise ConfigError(f"{kind.__qualname__} {why or 'is not at the top of its module'}")
        self._visit(module, kind.__name__)
        while self._take_methods():
            pass
        return str(kind.__name__)

    def add_class(self, name: str, body: str, needed: dict[str, Any]) -> str:
        """Add a class that has no source file, with the names that its code needs."""
        for alias, value in needed.items():
            self._import(alias, value)
        if self._defined.get(name, body) != body:
            raise ConfigError(f"two classes are called {name}; rename one")
        self._defined[name] = body
        return name

    def reads(self, attribute: str) -> bool:
        """Return True if the code taken so far mentions an attribute."""
        return self._is_open or attribute in self._mentioned

    def text(self) -> str:
        imports = "\n".join(sorted(set(self._imports.values())))
        return "\n\n\n".join([imports, *map(str, self._defined.values())]) + "\n"

    def _take_methods(self) -> bool:
        """Take every method that code already taken may call; return True if there was one."""
        taken = False
        for part in list(self._defined.values()):
            if not isinstance(part, _Class):
                continue
            for name, method in part.methods.items():
                if name in part.kept or not (name in _ENTRIES or name in self._mentioned):
                    continue
                taken = True
                part.kept.add(name)
                self._take(sys.modules[part.module], method)
        return taken

    def _take(self, module: ModuleType, node: ast.AST, name: str = "") -> None:
        if is_users_module(module.__name__):
            mentioned, is_open = attributes_read(node)
            self._is_open = self._is_open or is_open
            self._mentioned |= mentioned
        else:
            found = (part for part in ast.walk(node) if isinstance(part, ast.Attribute))
            self._mentioned.update(part.attr for part in found)
        for needed in names_read(node):
            if needed not in (name, *_EVERYWHERE) and hasattr(module, needed):
                self._visit(module, needed)

    def _import(self, alias: str, value: Any) -> None:
        if isinstance(value, ModuleType):
            name = value.__name__
            line = f"import {name}" if alias == name else f"import {name} as {alias}"
        else:
            line = f"from {value.__module__} import {value.__qualname__} as {alias}"
        self._import_line(alias, line)

    def _import_line(self, alias: str, line: str) -> None:
        if alias in self._owners:
            raise ConfigError(f"{alias} is defined in {self._owners[alias]}; found {line}, too")
        if self._imports.setdefault(alias, line) != line:
            raise ConfigError(f"two things are called {alias}: {self._imports[alias]}; {line}")

    def _visit(self, module: ModuleType, name: str) -> None:
        if name in self._owners:
            owner = sys.modules[self._owners[name]]
            if owner is not module and getattr(owner, name) is not getattr(module, name, None):
                raise ConfigError(
                    f"{name} is defined in {self._owners[name]} and in {module.__name__}; a subnet "
                    f"with both cannot be exported"
                )
            return
        is_users = is_users_module(module.__name__)
        nodes = own_statements(_tree(module), name) if is_users else []
        node = nodes[0] if len(nodes) == 1 else _find(module, name)
        value = getattr(module, name, None)
        if isinstance(node, ast.Import | ast.ImportFrom) or node is None:
            _check_free(name, value, module)
            self._visit_imported(name, node, value, module)
            return
        if name in self._imports:
            raise ConfigError(f"{module.__name__} defines {name}, found {self._imports[name]}, too")
        _check_free(name, value, module)
        self._owners[name] = module.__name__
        if is_users:
            self._copy(module, name, nodes)
            return
        if (
            isinstance(node, ast.ClassDef)
            and isinstance(value, type)
            and issubclass(value, nn.Module)
        ):
            part = _Class(node, module.__name__)
            for base in part.bases:
                self._take(module, base)
            self._defined[name] = part
            return
        self._take(module, node, name)
        self._defined[name] = ast.unparse(node)

    def _copy(self, module: ModuleType, name: str, nodes: list[ast.stmt]) -> None:
        """Copy statements of a user's module, after everything that they need immediately."""
        if not nodes or any(map(imports_inside, nodes)):
            raise ConfigError(f"{module.__name__}.{name} cannot be copied alone")
        for part in (early for node in nodes for early in early_parts(node)):
            self._take(module, part, name)
        self._defined[name] = "\n".join(map(ast.unparse, nodes))
        for node in nodes:
            self._take(module, node, name)

    def _visit_imported(self, name: str, node: Any, value: Any, module: ModuleType) -> None:
        if isinstance(value, ModuleType):
            if is_users_module(value.__name__):
                raise ConfigError(
                    f"{module.__name__} imports {value.__name__} whole; to export it, import what "
                    f"it needs by name: from {value.__name__} import ..."
                )
            self._import(name, value)
            return
        if not isinstance(node, ast.ImportFrom):
            raise ConfigError(f"{module.__name__}.{name} cannot be exported: nothing defines it")
        source = source_of(node, module)
        alias = next(a for a in node.names if (a.asname or a.name) == name)
        if not _is_copied(source):
            renamed = f" as {alias.asname}" if alias.asname else ""
            self._import_line(name, f"from {source} import {alias.name}{renamed}")
        elif alias.asname not in (None, alias.name):
            raise ConfigError(f"{module.__name__}.{name} cannot be exported: it is renamed")
        elif isinstance(value, type) and value.__module__.startswith("nni.mutable"):
            self._owners[name] = module.__name__
            self._defined[name] = f'class {name}:\n    """Of NNI\'s spaces: nothing here is one."""'
        else:
            is_named = isinstance(value, type | FunctionType) and _is_copied(value.__module__)
            defined_in = value.__module__ if is_named else None
            self._visit(sys.modules[defined_in or source], alias.name)


def _check_free(name: str, value: Any, module: ModuleType) -> None:
    if name != "annotations" and vars(standalone).get(name, value) is not value:
        raise ConfigError(
            f"{module.__name__}.{name} is called as the loader's own {name} in model.py; rename it"
        )


def _without_text(part: ast.stmt) -> ast.stmt:
    """Remove a method's docstring, which does not describe partial code."""
    if isinstance(part, ast.FunctionDef) and ast.get_docstring(part, clean=False) is not None:
        part.body = part.body[1:] or [ast.Pass()]
    return part


def _tree(module: ModuleType) -> ast.Module:
    try:
        return ast.parse(inspect.getsource(module))
    except (OSError, TypeError, SyntaxError) as error:
        raise ConfigError(f"the source of {module.__name__} cannot be read") from error


def _find(module: ModuleType, name: str) -> ast.stmt | None:
    tree = _tree(module)
    for node in _statements(tree.body):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return node
        if isinstance(node, ast.Import | ast.ImportFrom):
            if any((a.asname or a.name.split(".")[0]) == name for a in node.names):
                return node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(t, ast.Name) and t.id == name for t in targets):
                return node
    return imported_by_star(module, tree, name)


def _statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        yield node
        if isinstance(node, ast.Try | ast.If):
            yield from _statements(node.body)


def _plain_base(base: ast.expr) -> ast.expr:
    if ast.unparse(base).split(".")[-1] in _BASES:
        return ast.parse("torch.nn.Module", mode="eval").body
    return base
