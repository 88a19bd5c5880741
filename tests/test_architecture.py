"""The shape of the code: what imports what, and what nothing may use."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PURE = ("config", "engine", "label_scheduler", "plan", "report", "search", "store", "streams")
ENVIRONMENT = {
    "naspipe/api/training.py": "threads, for the manifest; only read",
    "naspipe/data/cache.py": "XDG_CACHE_HOME, as other programs keep their caches",
    "naspipe/machine/determinism.py": "CUBLAS_WORKSPACE_CONFIG; the others are only read",
    "naspipe/machine/forking.py": "what a user asks of malloc; only whether it is there",
    "naspipe/wire/nccl_path.py": "NCCL_SOCKET_IFNAME and gloo's, read only by them",
    "naspipe/launch/launcher.py": "the one place that may look at how it was started",
    "naspipe/launch/hosts.py": "torchrun's variables: which worker this is",
    "search_spaces/debian/packages.py": "the environment that dpkg and apt are started with",
    "naspipe/verification/plain_loop.py": "CUBLAS_WORKSPACE_CONFIG, read only by cuBLAS",
}
"""Files of the product that may touch the environment's variables, and why."""


@functools.cache
def tracked() -> tuple[str, ...]:
    """Python files that git knows or that are new and not ignored."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", "*.py"]
    try:
        listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        folders = ("naspipe", "search_spaces", "scripts", "tests")  # an unpacked archive
        paths = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
        return tuple(sorted(path.relative_to(ROOT).as_posix() for path in paths))
    return tuple(sorted(p for p in listed.stdout.split("\0") if p and (ROOT / p).exists()))


@functools.cache
def tree(path: str) -> ast.Module:
    return ast.parse((ROOT / path).read_text("utf-8"), path)


def product() -> list[str]:
    return [path for path in tracked() if path.startswith(("naspipe/", "search_spaces/"))]


def dotted(node: ast.AST) -> str:
    """``os.environ`` for that expression; empty for what is no chain of names."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        before = dotted(node.value)
        return f"{before}.{node.attr}" if before else ""
    return ""


def imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []


def test_the_files_are_found() -> None:
    assert {"naspipe/config/ids.py", "search_spaces/cv/spec.py"} <= set(product())
    assert "tests/test_architecture.py" in tracked()


def test_pure_packages_import_without_torch() -> None:
    modules = [
        module_of(path)
        for path in product()
        if path.split("/")[1] in PURE
        or path in ("search_spaces/__init__.py", "search_spaces/common.py")
        or path.endswith(("/spec.py", "/choices.py"))
    ]
    assert len(modules) > 35
    code = (
        "import importlib, sys\n"
        "sys.modules['torch'] = None\n"
        "for name in sys.argv[1:]: importlib.import_module(name)\n"
        "heavy = {'torch', 'zmq', 'rich', 'nni', 'sklearn'} & {\n"
        "    name for name, module in sys.modules.items() if module}\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *modules], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_import_contracts_hold() -> None:
    code = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    done = subprocess.run(
        [sys.executable, "-c", code, "--no-logo", "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 kept, 0 broken" in done.stdout, done.stdout


def module_of(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def uses(module: ast.Module, known: set[str]) -> set[str]:
    """The known modules that one imports, at its top or inside a function."""
    names = (name for node in ast.walk(module) for name in imported(node))
    return {
        name if name in known else name.rpartition(".")[0]
        for name in names
        if name in known or name.rpartition(".")[0] in known
    }


def circle(graph: Mapping[str, set[str]]) -> list[str]:
    """Modules that import each other, each the one before it; none where there is no circle."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_modules_import_each_other() -> None:
    paths = [path for path in tracked() if not path.startswith("tests/")]
    known = {module_of(path) for path in paths}
    graph = {module_of(path): uses(tree(path), known) - {module_of(path)} for path in paths}
    assert sum(map(len, graph.values())) > 500
    assert circle(graph) == []


def test_circles_are_seen() -> None:
    sources = {
        "a.spec": "def f():\n    from a.layers import Stem",
        "a.layers": "import a.common\nfrom a import base",
        "a.base": "from a.spec import SIZE",
        "a.common": "import os",
        "a": "from a.spec import SIZE",
    }
    graph = {name: uses(ast.parse(text), set(sources)) for name, text in sources.items()}
    assert set(circle(graph)) == {"a.spec", "a.layers", "a.base"}
    assert circle({name: needed - {"a.spec"} for name, needed in graph.items()}) == []


def dangers(module: ast.Module) -> Iterator[str]:
    """Ways to run what a file or a message holds."""
    for node in ast.walk(module):
        for name in imported(node):
            if name.split(".")[0] in ("pickle", "cPickle", "dill", "cloudpickle", "shelve"):
                yield f"{node.lineno}: import {name}"  # type: ignore[attr-defined]
            if name in ("marshal", "torch.load", "numpy.load", "joblib.load"):
                yield f"{node.lineno}: import {name}"  # type: ignore[attr-defined]
        if isinstance(node, ast.Call):
            name = dotted(node.func)
            if name in ("eval", "exec", "compile", "__import__", "builtins.eval", "builtins.exec"):
                yield f"{node.lineno}: {name}()"
            is_load = name.split(".")[-1] == "load" and name.split(".")[0] in ("torch", "joblib")
            if is_load and not (name == "torch.load" and loads_weights_only(node)):
                yield f"{node.lineno}: {name}()"
            if any(keyword.arg == "allow_pickle" for keyword in node.keywords):
                value = next(k.value for k in node.keywords if k.arg == "allow_pickle")
                if not (isinstance(value, ast.Constant) and value.value is False):
                    yield f"{node.lineno}: allow_pickle"
            if name.split(".")[-1] in ("send_pyobj", "recv_pyobj"):
                yield f"{node.lineno}: {name}()"


def loads_weights_only(call: ast.Call) -> bool:
    """Whether it says so itself: torch then makes tensors and plain containers alone."""
    values = [each.value for each in call.keywords if each.arg == "weights_only"]
    return any(isinstance(each, ast.Constant) and each.value is True for each in values)


def test_nothing_is_pickled_or_evaluated() -> None:
    found = [f"{path}:{line}" for path in product() for line in dangers(tree(path))]
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle", "from pickle import loads", "import torch; torch.load(f)", "eval('1')",
        "from torch import load", "exec(x)", "numpy.load(f, allow_pickle=True)",
        "socket.recv_pyobj()", "torch.load(f, weights_only=False)", "torch.load(f, weights_only=x)",
    ],
)  # fmt: skip
def test_dangers_are_seen(source: str) -> None:
    assert list(dangers(ast.parse(source)))
    assert not list(dangers(ast.parse("numpy.load(f, allow_pickle=False); json.load(f)")))
    assert not list(dangers(ast.parse("torch.load(f, weights_only=True)")))


def touches_environment(module: ast.Module) -> bool:
    names = ("os.environ", "os.getenv", "os.putenv", "os.environb", "os.unsetenv")
    return any(
        dotted(node) in names or any(name in names for name in imported(node))
        for node in ast.walk(module)
    )


def test_the_environment_is_touched_in_few_places() -> None:
    assert {path for path in product() if touches_environment(tree(path))} <= set(ENVIRONMENT)
    assert touches_environment(ast.parse("from os import environ"))
    assert touches_environment(ast.parse("import os; os.getenv('X')"))
    assert not touches_environment(ast.parse("import os; os.getpid()"))
