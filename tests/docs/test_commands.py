"""The commands that the README and the pages show are taken, and those that need no cluster run.

They run page by page in one directory, as a reader would, with small numbers: see :func:`small`.
"""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from naspipe.cli.main import SUBCOMMANDS, _load, build_parser, main
from naspipe.config.errors import ConfigError
from tests.docs.test_pages import PAGES, ROOT

COMMAND = re.compile(r"^    +(?:\S+ -m )?naspipe ((?:[^\n]*\\\n)*[^\n]*)$", re.MULTILINE)

NUMBERS = {
    "--steps": "4", "--budget": "4", "--retrain": "1", "--batches": "16", "--validate-every": "2",
    "--validate-subnets": "1", "--teachers": "1", "--stages": "1", "--devices": "2",
    "--subnet": "1", "--checkpoint-every": "2", "--from": "2",
}  # fmt: skip
"""Of options. Stages change no bit; tests of the runtime have more of them."""

SPACES = {
    "nlp.c1": "cv.c3", "mobilenet-v2": "vgg8", "vit": "vgg8", "vgg16": "vgg8",
    "proxyless": "separable", "fashion-mnist": "digits",
}  # fmt: skip
"""Networks whose layers cost less, and data that nothing has to be fetched for."""

ELSEWHERE = {
    "data prepare": "a package, which tests/data has",
    "redis://": "a cluster's registry",
    "cuda": "a GPU",
    "mine:": "a module of the reader's",
    "mymodule:": "a module of the reader's",
    "...": "left out on the page",
    "--bleu": "decoding, which tests/export has",
    "runs/mine": "a run of the reader's",
    "0,1;2;": "choices of the page's own blocks",
}
"""What is only parsed, and what it would need."""

FIRST = ("blockwise", "first-run", "teachers", "elastic")
"""Pages whose runs others use."""


def commands(text: str) -> list[list[str]]:
    """Of a page, in their order; what stands behind a # is left out."""
    found = [re.sub(r"\\\n\s*", " ", each) for each in COMMAND.findall(text)]
    return [shlex.split(each, comments=True) for each in found if re.match(r"[a-z]+( |$)", each)]


def of_clusters(text: str) -> list[list[str]]:
    """What a page's torchrun starts."""
    joined = re.sub(r"\\\n\s*", " ", text)
    found = re.findall(r"^    (?:srun )?torchrun .* -m naspipe (.*)$", joined, re.MULTILINE)
    return [shlex.split(each, comments=True) for each in found]


def small(words: list[str]) -> list[str]:
    """The same command on small networks, digits and small numbers."""
    pairs = zip(["", *words], words, strict=False)
    words = [
        NUMBERS[option] if option in NUMBERS and word.isdigit() else SPACES.get(word, word)
        for option, word in pairs
    ]
    words = [re.sub(r"(accumulate|subnets):\d", r"\1:2", word) for word in words]
    verb, space = words[0], words[1] if len(words) > 1 else ""
    more: dict[str, str] = {}
    if verb == "train" and "--resume" not in words:
        words += ["--set", "data.batch_size=8"]
        more |= {"--steps": "4", "--data": "digits"}
    if verb == "plan":
        more["--steps"] = "8"
        more |= {"--data": "digits"} if not {"--costs", "separable"} & {*words} else {}
    if verb == "distill" and "--resume" not in words:
        more |= {"--steps": "4"}
    if verb == "search":
        more |= {"--budget": "4"}
    if space in ("byol", "moco-v3"):
        more["--data"] = "views:digits"
    return [*words, *(each for name in more if name not in words for each in (name, more[name]))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_are_taken(page):
    text = page.read_text("utf-8")
    for words in commands(text) + of_clusters(text):
        if words[0] in SUBCOMMANDS:
            try:
                build_parser(words[0], _load(words[0])).parse_args(words)
            except ConfigError as error:
                pytest.fail(f"naspipe {' '.join(words)}: {error}")


@pytest.fixture(scope="module")
def planned():
    """Plans that were simulated; another page's need not be again."""
    return []


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("pages")


def ordered() -> list[Path]:
    """Pages with commands that run, those that others need first."""
    having = [page for page in PAGES if running(page)]
    return sorted(having, key=lambda page: (page.stem not in FIRST, *_place(page), page.name))


def _place(page: Path) -> tuple[int, ...]:
    return (FIRST.index(page.stem),) if page.stem in FIRST else ()


def running(page: Path) -> list[list[str]]:
    found = [words for words in commands(page.read_text("utf-8")) if words[0] in SUBCOMMANDS]
    return [words for words in found if not any(mark in " ".join(words) for mark in ELSEWHERE)]


@pytest.mark.parametrize("page", ordered(), ids=lambda page: page.name)
def test_commands_run(page, place, planned, monkeypatch, capsys):
    """A command that a page shows with a line of refusal is refused with it."""
    monkeypatch.chdir(place)
    text = page.read_text("utf-8")
    for words in running(page):
        refusal = re.search(rf"naspipe {re.escape(shlex.join(words))}\n    (naspipe: .*)", text)
        asked = words if refusal else small(words)
        if asked in planned:
            continue
        planned += [asked] * (asked[0] == "plan")
        for option in ("--run-dir", "-o", "--to"):
            if option in asked:
                shutil.rmtree(asked[asked.index(option) + 1], ignore_errors=True)
        assert main(asked) == (2 if refusal else 0), (asked, capsys.readouterr().err[-2000:])
        if refusal:
            assert capsys.readouterr().err.rstrip() == refusal[1]


def test_what_is_shown_is_found_and_what_is_wrong_is_seen():
    found = commands((ROOT / "docs/first-run.md").read_text("utf-8"))
    assert len(found) > 10 and ["data", "list"] in found
    assert len(of_clusters((ROOT / "docs/hosts.md").read_text("utf-8"))) == 5
    (words,) = commands("    naspipe train nlp.c1 \\\n        --stagez 2   # wrong\n")
    assert words == ["train", "nlp.c1", "--stagez", "2"]
    assert small(words)[:2] == ["train", "cv.c3"]
    with pytest.raises(ConfigError):
        build_parser("train", _load("train")).parse_args(words)
    assert {words[0] for page in PAGES for words in running(page)} >= {
        "train", "compare", "log", "report", "plan", "search", "export", "distill", "combine",
        "profile", "simulate", "runs", "data", "teach",
    }  # fmt: skip


def test_no_command_stands_outside_of_a_block():
    """One that is not indented is running text to whoever renders the page."""
    for page in PAGES:
        text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
        bare = re.findall(r"^(?:naspipe [a-z]+ .*|source \S+/activate.*)$", text, re.MULTILINE)
        assert [line for line in bare if " --" in line or "activate" in line] == [], page.name
