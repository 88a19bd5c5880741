"""The source that a module's forward needs, gathered from the packages whose classes it has.

Only what a forward can reach is taken: constructors stay behind, because a layer is rebuilt from
what it is and not from how it was made.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any

from torch import nn

from naspipe.core.errors import ConfigError

PACKAGES = ("search_spaces", "nni")
"""Packages whose classes are written out; those of others are imported."""

_BASES = ("MutableModule", "ParametrizedModule", "ModelSpace")
_ENTRIES = {"forward", "__getitem__", "__len__", "__iter__", "__call__"}


def is_written_out(kind: type) -> bool:
    """Whether a class's source goes into the file."""
    return kind.__module__.split(".")[0] in PACKAGES


class SourceFile:
    """Classes, and all that they need, in an order in which they can be defined."""

    def __init__(self) -> None:
        self._imports: dict[str, str] = {}
        self._defined: dict[str, str] = {}
        self._owners: dict[str, str] = {}
        self._read: dict[str, set[str]] = {}

    def add(self, kind: type) -> str:
        """Take a class in; returns its name in the file.

        Raises:
            ConfigError: when it cannot be taken out of its module.
        """
        self._visit(sys.modules[kind.__module__], kind.__name__)
        return kind.__name__

    def add_class(self, name: str, body: str, needed: dict[str, Any]) -> str:
        """Take in a class that has no source file, with the names its code needs."""
        for alias, value in needed.items():
            self._import(alias, value)
        if self._defined.get(name, body) != body:
            raise ConfigError(f"two classes are called {name}; rename one")
        self._defined[name] = body
        return name

    def reads(self, name: str, attribute: str) -> bool:
        """Whether a class's code, as far as it is taken, mentions an attribute."""
        return attribute in self._read.get(name, {attribute})

    def text(self) -> str:
        """Imports, then definitions."""
        imports = sorted(set(self._imports.values()))
        return "\n".join(imports) + "\n\n\n" + "\n\n\n".join(self._defined.values()) + "\n"

    def _import(self, alias: str, value: Any) -> None:
        if isinstance(value, ModuleType):
            name = value.__name__
            line = f"import {name}" if alias == name else f"import {name} as {alias}"
        else:
            line = f"from {value.__module__} import {value.__qualname__} as {alias}"
        if self._imports.setdefault(alias, line) != line:
            raise ConfigError(f"two things are called {alias}: {self._imports[alias]}; {line}")

    def _visit(self, module: ModuleType, name: str) -> None:
        if name in self._owners:
            if self._owners[name] != module.__name__:
                raise ConfigError(
                    f"{name} is defined in {self._owners[name]} and in {module.__name__}; a subnet "
                    f"with both cannot be exported"
                )
            return
        node = _find(module, name)
        value = getattr(module, name, None)
        if isinstance(node, ast.Import | ast.ImportFrom) or node is None:
            self._visit_imported(name, node, value, module)
            return
        self._owners[name] = module.__name__
        if isinstance(node, ast.ClassDef):
            node = _pruned(node, module, value)
            self._read[name] = {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}
        for needed in _names(node):
            if needed != name and hasattr(module, needed):
                self._visit(module, needed)
        self._defined[name] = ast.unparse(node)
        if isinstance(value, type):
            for base in value.__mro__[1:]:
                self._read[name] |= self._read.get(base.__name__, set())

    def _visit_imported(self, name: str, node: Any, value: Any, module: ModuleType) -> None:
        origin = getattr(value, "__module__", "") or ""
        if isinstance(value, ModuleType) or origin.split(".")[0] not in PACKAGES:
            if isinstance(node, ast.ImportFrom) and origin == "":
                source = inspect.getmodule(module)
                raise ConfigError(f"{source}: the constant {name} cannot be exported")
            self._import(name, value) if isinstance(value, ModuleType) else self._from(name, node)
        elif isinstance(value, type) and not issubclass(value, nn.Module):
            self._owners[name] = module.__name__
            self._defined[name] = f'class {name}:\n    """Of {origin}: nothing here is one."""'
        else:
            self._visit(sys.modules[origin], value.__name__)

    def _from(self, name: str, node: Any) -> None:
        if not isinstance(node, ast.ImportFrom) or node.level:
            raise ConfigError(f"{name} cannot be exported: it is neither defined nor imported")
        alias = next(a for a in node.names if (a.asname or a.name) == name)
        renamed = f" as {alias.asname}" if alias.asname else ""
        self._imports[name] = f"from {node.module} import {alias.name}{renamed}"


def _find(module: ModuleType, name: str) -> ast.stmt | None:
    """The statement of a module that binds a name."""
    for node in _statements(ast.parse(inspect.getsource(module)).body):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return node
        if isinstance(node, ast.Import | ast.ImportFrom):
            if any((a.asname or a.name.split(".")[0]) == name for a in node.names):
                return node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(t, ast.Name) and t.id == name for t in targets):
                return node
    return None


def _statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        yield node
        if isinstance(node, ast.Try | ast.If):
            yield from _statements(node.body)


def _names(node: ast.AST) -> list[str]:
    """Names that a statement reads when it runs; annotations are never evaluated."""
    found: dict[str, None] = {}
    skipped: set[int] = set()
    for part in ast.walk(node):
        for annotation in (getattr(part, "annotation", None), getattr(part, "returns", None)):
            if isinstance(annotation, ast.AST):
                skipped.update(map(id, ast.walk(annotation)))
        if isinstance(part, ast.Name) and id(part) not in skipped:
            found[part.id] = None
    return list(found)


def _pruned(node: ast.ClassDef, module: ModuleType, value: Any) -> ast.ClassDef:
    """A module's class with the methods that its forward can reach; other classes whole."""
    if not (isinstance(value, type) and issubclass(value, nn.Module)):
        return node
    methods = {part.name: part for part in node.body if isinstance(part, ast.FunctionDef)}
    kept: set[str] = set()
    waiting = [name for name in methods if name in _ENTRIES]
    while waiting:
        name = waiting.pop()
        kept.add(name)
        mentioned = {n.attr for n in ast.walk(methods[name]) if isinstance(n, ast.Attribute)}
        waiting += [n for n in methods if n in mentioned and n not in kept and n not in waiting]
    if any(base.__name__ not in _BASES and is_written_out(base) for base in value.__mro__[1:]):
        kept = set(methods) - {"__init__"} if kept else set()  # a base may call any of them
    body = [p for p in node.body if not isinstance(p, ast.FunctionDef) or p.name in kept]
    body = [p for p in body if not isinstance(p, ast.AnnAssign | ast.Assign) or _is_plain(p)]
    node.bases = [_plain_base(base) for base in node.bases]
    node.keywords, node.decorator_list = [], []
    node.body = body or [ast.Pass()]
    return node


def _is_plain(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and not _names(node.value)


def _plain_base(base: ast.expr) -> ast.expr:
    if ast.unparse(base).split(".")[-1] in _BASES:
        return ast.parse("nn.Module", mode="eval").body
    return base
