"""What of a user's own module goes into a file: whole statements, and the names they need."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from importlib.util import resolve_name
from types import ModuleType

_CONSTRUCTORS = ("__init__", "__new__", "__post_init__")
_DYNAMIC = {"getattr", "setattr", "hasattr", "delattr", "vars"}

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def own_statements(tree: ast.Module, name: str) -> list[ast.stmt]:
    """The statements at the top of a module that bind a name, or change what it is bound to."""
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
    """The name that an expression such as ``NAME.part[0]`` begins with."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Starred):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def source_of(node: ast.ImportFrom, module: ModuleType) -> str:
    """The module that a statement of another one imports from."""
    package = module.__name__ if hasattr(module, "__path__") else module.__package__
    return resolve_name("." * node.level + (node.module or ""), package)


def imported_by_star(module: ModuleType, tree: ast.Module, name: str) -> ast.ImportFrom | None:
    """The import by name that binds what a module has by ``from ... import *``."""
    for node in reversed(tree.body):
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
            there = vars(sys.modules[source_of(node, module)])
            if name in there and there[name] is getattr(module, name, None):
                return ast.ImportFrom(node.module, [ast.alias(name)], node.level)
    return None


def early_parts(node: ast.stmt) -> Iterator[ast.AST]:
    """What runs where a statement stands; what else it holds runs when it is called."""
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
    """Whether a statement that is no import holds one."""
    is_plain = isinstance(node, ast.Import | ast.ImportFrom)
    inner = (isinstance(each, ast.Import | ast.ImportFrom) for each in ast.walk(node))
    return not is_plain and any(inner)


def attributes_read(node: ast.AST) -> tuple[set[str], bool]:
    """Attributes that code mentions outside constructors, and whether it may read any others."""
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
