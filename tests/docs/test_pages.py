"""The files, classes and layers that pages name exist."""

from __future__ import annotations

import ast
import fnmatch
import functools
import re
import tomllib
from collections.abc import Iterator

import pytest

from naspipe.streams.samplers import draw_stream
from tests.test_architecture import ROOT, product, tracked, tree

WALK = ROOT / "docs" / "internals" / "walk.md"
PAGES = [ROOT / "README.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").glob("*.md")), WALK]
PLANS = [page for page in sorted(WALK.parent.glob("*.md")) if page != WALK]
"""Pages that name modules which do not exist yet; their links are checked, and no names."""

ELSEWHERE = {"model.py", "artifacts/gpu/"}
"""Files that naspipe writes, not that it has."""

OTHERS = {"malloc_trim", "rebuild_batches"}
"""Names of others that our pages use."""

CODE = re.compile(r"`([^`]+)`")
A_FILE = re.compile(r"[\w.*-]+(?:/[\w.*-]+)*\.(?:py|sh|toml)")
A_FOLDER = re.compile(r"(?:naspipe|tests|scripts|search_spaces|artifacts|docs)(?:/[\w-]+)*/")
A_NAME = re.compile(r"[A-Z][a-z]+(?:[A-Z][a-z]+)+|_?[a-z]+(?:_[a-z]+)+")


def text_of(page) -> str:
    return page.read_text("utf-8")


def in_code(text: str) -> Iterator[str]:
    """What stands in backticks in running text and tables."""
    yield from CODE.findall(re.sub(r"```.*?```", "", text, flags=re.DOTALL))


@functools.cache
def paths() -> tuple[str, ...]:
    found = [path for path in ROOT.rglob("*") if not {".git", ".venv"} & set(path.parts)]
    files = [path.relative_to(ROOT).as_posix() for path in found if path.is_file()]
    return tuple(f"/{path}" for path in files)


def exists(name: str) -> bool:
    """Whether a file of the repository has this path, or one that ends so."""
    if "*" in name:
        return any(fnmatch.fnmatch(path, f"*/{name}") for path in paths())
    return any(path.endswith(f"/{name}") for path in paths())


def missing_files(text: str) -> list[str]:
    named = [word for code in in_code(text) for word in re.split(r"[\s:=]+", code)]
    files = {word.removeprefix("./") for word in named if A_FILE.fullmatch(word.lstrip("./"))}
    folders = {word for word in named if A_FOLDER.fullmatch(word)}
    lost = {name for name in files if not exists(name)}
    lost |= {name for name in folders if not (ROOT / name).is_dir()}
    return sorted(lost - ELSEWHERE)


@functools.cache
def sources() -> str:
    """The code, these tests left out; names of tests begin with ``test_``, pages leave it out."""
    found = [path for path in tracked() if not path.startswith("tests/docs/")]
    return "\n".join((ROOT / path).read_text("utf-8") for path in found)


def missing_names(text: str) -> list[str]:
    """Classes, functions and settings that a page names and that the code does not."""
    bare = [A_FILE.sub(" ", code) for code in in_code(text)]
    named = {word for code in bare for word in re.split(r"[^\w]+", code)}
    lost = {word for word in named if A_NAME.fullmatch(word) and word not in sources()}
    return sorted(lost - OTHERS)


def dead_links(page, text: str) -> list[str]:
    """Links to files that are not there, or to headings that their page does not have."""
    bare = CODE.sub("", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    found = []
    for link in re.findall(r"\]\(([^)\s]+)\)", bare):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        is_lost = not target.exists()
        if not is_lost and anchor and target.suffix == ".md":
            is_lost = anchor not in anchors(target, text, page)
        if is_lost and "://" not in link:
            found.append(link)
    return found


def anchors(target, text: str, page) -> set[str]:
    """Of a page's headings, as code hosts and the site make them."""
    own = text if target == page else text_of(target)
    headings = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", own, flags=re.DOTALL), re.M)
    return {re.sub(r"[^\w\- ]", "", each.strip().lower()).replace(" ", "-") for each in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_files_that_a_page_names_are_there(page) -> None:
    assert missing_files(text_of(page)) == []
    assert dead_links(page, text_of(page)) == []


@pytest.mark.parametrize(
    ("heading", "most"),
    [("One step of one subnet", 12), ("One setting, from the flag to its effect", 6)],
)
def test_a_walk_takes_few_files(heading: str, most: int) -> None:
    section = text_of(WALK).partition(f"## {heading}\n")[2].partition("\n## ")[0]
    files = re.findall(r"^\| \d+ \| `(\S+)` \|", section, re.M)
    assert 5 < len(files) <= most
    assert [file for file in files if not (ROOT / "naspipe" / file).is_file()] == []


@pytest.mark.parametrize("page", PLANS, ids=lambda page: page.name)
def test_the_links_of_a_plan_are_there(page) -> None:
    assert dead_links(page, text_of(page)) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_names_that_a_page_uses_are_there(page) -> None:
    assert missing_names(text_of(page)) == []


def test_what_is_not_there_is_seen() -> None:
    good = "`engine/controller.py`, `naspipe/engine/`, `Tap(source=1)`, `./run_tests.sh`"
    assert missing_files(good) == missing_names(good) == []
    assert missing_files("`engine/lost.py`: `a`, `naspipe/lost/`") == [
        "engine/lost.py",
        "naspipe/lost/",
    ]
    assert missing_names("`LostClass.lost_too` of `StageController`") == ["LostClass", "lost_too"]
    links = "# A `b`, c\n[a](docs/lost.md), [b](docs/design.md#x), [c](docs/design.md#the-promise)"
    assert dead_links(PAGES[0], links) == ["docs/lost.md", "docs/design.md#x"]
    assert dead_links(PAGES[0], "# A `b`, c\n[a](#a-b-c), [b](#a)") == ["#a"]


def drawings() -> list[list[str]]:
    """Of each block of plain text in docs/design.md, the first column."""
    blocks = re.findall(r"```\n(.*?)```", text_of(ROOT / "docs" / "design.md"), re.DOTALL)
    return [[re.split(r"\s{2,}", line)[0] for line in block.splitlines()] for block in blocks]


def test_the_drawings_are_those_of_the_import_contracts() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    named = {
        each["name"]: [layer.replace("naspipe.", "") for layer in each["layers"]]
        for each in contracts["tool"]["importlinter"]["contracts"]
        if each["type"] == "layers"
    }
    assert len(named) == 2
    assert [name for name, layers in named.items() if layers not in drawings()] == []


def protocols() -> dict[str, str]:
    """The Protocols of the product, and the files that they stand in."""
    return {
        node.name: path
        for path in product()
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ClassDef)
        and any(ast.unparse(base).split("[")[0] == "Protocol" for base in node.bases)
    }


def test_every_protocol_is_on_the_page_of_ports() -> None:
    """In the first column of a table that stands under its file's name, or names it."""
    listed: set[tuple[str, str]] = set()
    place = ""
    for line in text_of(ROOT / "docs" / "ports.md").splitlines():
        if heading := re.match(r"In `(\S+\.py)`:", line):
            place = heading[1]
        if row := re.match(r"\| `(\w+)` \|(?: `(\S+\.py)` \|)?", line):
            listed.add((row[1], f"naspipe/{row[2] or place}"))
    assert len(protocols()) > 30
    assert set(protocols().items()) - listed == set()
    ports = set(protocols().values())
    assert {row for row in listed if row[1] in ports} - set(protocols().items()) == set()


def test_the_index_says_where_files_of_tests_are() -> None:
    """Pages name them, and an installed release has none."""
    said = (ROOT / "docs" / "index.md").read_text("utf-8")
    assert "are in the repository. An installed release has none" in said


def test_the_first_page_shows_a_layer_that_its_run_uses() -> None:
    text = (ROOT / "docs/first-run.md").read_text("utf-8")
    train = re.search(
        r"train nlp\.c1 .* --sampler (\S+) --steps (\d+) --seed (\d+) .*runs/two", text
    )
    log = re.search(r"log runs/two --layer (\d+)\.(\d+) .*: (\S+)$", text, re.MULTILINE)
    assert train and log
    block, candidate = int(log[1]), int(log[2])
    stream = draw_stream(train[1], [72] * (block + 1), int(train[3]), int(train[2]))  # nlp.c1's
    users = [number for number, choices in enumerate(stream) if choices[block] == candidate]
    assert log[3] == "-".join(f"{number}F-{number}B" for number in users)
