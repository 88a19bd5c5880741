"""Join modules of naspipe into one, as docs/internals/architecture.md says, and rewrite imports.

    scripts/move_modules.py streams/feedback=streams/feedback,streams/kept ...

Names are below naspipe/, without ``.py``. Each target has the statements of its sources, a module
after those that it imports, and the docstring of the first source: write it anew by hand, because
those of the others are printed and dropped. Imports and dotted names are rewritten in all Python
files, paths in the pages. Collisions of top-level names end the script before it writes anything.
Run ``ruff check --fix`` and ``ruff format`` afterwards. Packages that become empty, their
tests and the import contracts are moved by hand.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parent.parent
CODE = ("naspipe", "search_spaces", "scripts", "tests", "examples", "artifacts")


def dotted(name: str) -> str:
    """``naspipe.streams.feedback`` of ``streams/kept``."""
    return "naspipe." + name.replace("/", ".")


def file_of(module: str) -> Path:
    """Where a module is."""
    return ROOT / (module.replace(".", "/") + ".py")


def in_order(sources: list[str], trees: dict[str, ast.Module]) -> list[str]:
    """The sources, each after those of them that it imports at its top.

    Raises:
        SystemExit: if they import each other.
    """
    needs = {
        module: {each.module for each in trees[module].body if isinstance(each, ast.ImportFrom)}
        & set(sources)
        for module in sources
    }
    found: list[str] = []
    while len(found) < len(sources):
        ready = [each for each in sources if each not in found and needs[each] <= set(found)]
        if not ready:
            raise SystemExit(f"these import each other: {sorted(set(sources) - set(found))}")
        found.append(ready[0])
    return found


def names_of(statement: ast.stmt) -> Iterable[str]:
    """What a top-level statement defines."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield statement.name
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    targets = [statement.target] if isinstance(statement, ast.AnnAssign) else targets
    for target in targets:
        yield from (each.id for each in ast.walk(target) if isinstance(each, ast.Name))


def joined(target: str, sources: list[str]) -> str:
    """The text of a target.

    Raises:
        SystemExit: for a name that two sources define.
    """
    trees = {each: ast.parse(file_of(each).read_text("utf-8")) for each in sources}
    imports: list[str] = []
    bodies: list[str] = []
    owners: dict[str, str] = {}
    for module in in_order(sources, trees):
        lines = file_of(module).read_text("utf-8").splitlines()
        dropped: set[int] = set()
        for place, statement in enumerate(trees[module].body):
            is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
            is_import = isinstance(statement, ast.Import | ast.ImportFrom)
            if is_import or (place == 0 and is_text):
                dropped |= set(range(statement.lineno, (statement.end_lineno or 0) + 1))
            source = statement.module if isinstance(statement, ast.ImportFrom) else ""
            if is_import and source not in (*sources, "__future__"):
                imports.append(ast.unparse(statement))
            for name in names_of(statement):
                if owners.setdefault(name, module) != module:
                    raise SystemExit(f"{target}: {name} is of {owners[name]} and of {module}")
        if module != sources[0]:
            print(f"{target}: docstring of {module}:\n{ast.get_docstring(trees[module])}\n")
        kept = [line for number, line in enumerate(lines, 1) if number not in dropped]
        bodies.append("\n".join(kept).strip("\n"))
    docstring = ast.get_docstring(trees[sources[0]], clean=False)
    top = f'"""{docstring}"""\n\nfrom __future__ import annotations\n\n'
    return top + "\n".join(imports) + "\n\n\n" + "\n\n\n".join(bodies) + "\n"


def renamed(text: str, names: dict[str, str], before: str, after: str) -> str:
    """A text with other names, the longest first."""
    alike = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
    return re.sub(rf"{before}({alike}){after}", lambda match: names[match[1]], text)


def rewrite(moved: dict[str, str]) -> None:
    """Name modules as they are called now, everywhere."""
    paths = {
        old.removeprefix("naspipe.").replace(".", "/") + ".py": new.removeprefix(
            "naspipe."
        ).replace(".", "/")
        + ".py"
        for old, new in moved.items()
    }
    code = [path for folder in CODE for path in (ROOT / folder).rglob("*.py")]
    pages = [ROOT / "README.md", ROOT / "pyproject.toml", *(ROOT / "docs").glob("*.md")]
    for path in (*code, *pages):
        text = path.read_text("utf-8")
        found = renamed(text, moved, r"\b", r"\b(?!/)")
        found = renamed(found, paths, r"(?<![\w/])(?:(?<=naspipe/))?", r"\b")
        found = renamed(found, {f"naspipe/{a}": f"naspipe/{b}" for a, b in paths.items()}, "", "")
        if found != text:
            path.write_text(found, "utf-8")
        for old in moved:
            package, _, name = old.rpartition(".")
            if re.search(rf"from {re.escape(package)} import .*\b{name}\b", found):
                print(f"{path.relative_to(ROOT)}: imports {name} of {package} as a module")


def main() -> None:
    """Carry the moves of the command line out."""
    moves = {
        dotted(target): [dotted(each) for each in sources.split(",")]
        for target, _, sources in (word.partition("=") for word in sys.argv[1:])
    }
    texts = {target: joined(target, sources) for target, sources in moves.items()}
    for sources in moves.values():
        for each in sources:
            file_of(each).unlink()
    for target, text in texts.items():
        file_of(target).parent.mkdir(parents=True, exist_ok=True)
        file_of(target).write_text(text, "utf-8")
    rewrite({each: target for target, sources in moves.items() for each in sources})


if __name__ == "__main__":
    main()
