"""Every block of Python in the README and the pages runs, or is shown to be one that cannot.

A page's blocks run one after the other in one directory, with small numbers: see :func:`small`.
Names that a page takes from its reader are those of :mod:`tests.docs.readers`.
"""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest
import torch
from torch import nn

import naspipe as npp
from naspipe.cli.main import main
from naspipe.config.settings import Flag, at_least, setting
from naspipe.streams.stream_file import read_stream
from tests.docs import readers
from tests.docs.test_pages import PAGES

WHOLE = {"README.md", "data.md", "spaces.md", "searches.md", "nni.md"}
"""Pages whose first block is run as it stands, by tests of their own (``test_readme.py`` of
API and of nni, ``test_examples.py``, ``test_spaces_page.py``)."""

NAMED = {
    "optimizers.md": readers.of_optimizers,
    "teachers.md": readers.of_teachers,
    "blockwise.md": readers.of_blockwise,
    "ports.md": lambda: {"setting": setting, "at_least": at_least, "Flag": Flag},
    "wiring.md": dict,
    "elastic-layers.md": dict,
    "reproducibility.md": dict,
}

NUMBERS = {"steps": 4, "stages": 1, "start": 2, "every": 2, "calibrate": 1, "validate": 2,
           "budget": 12, "population_size": 10}  # fmt: skip
NETWORKS = {"mobilenet-v2": "vgg8", "proxyless": "separable"}
"""Those that cost less."""


def blocks(page: Path) -> list[str]:
    """Of Python; those within a list lose its indentation."""
    found = re.findall(r"^( *)```python\n(.*?)^ *```", page.read_text("utf-8"), re.M | re.S)
    return [re.sub(rf"^{indent}", "", code, flags=re.MULTILINE) for indent, code in found]


def small(code: str) -> str:
    """The same with small numbers and networks."""
    for name, number in NUMBERS.items():
        code = re.sub(rf"\b{name}=\d+", f"{name}={number}", code)
    for name, other in NETWORKS.items():
        code = code.replace(f'"{name}"', f'"{other}"')
    return code


def test_all_blocks_are_found():
    having = {page.name for page in PAGES if blocks(page)}
    assert having == {*WHOLE, *NAMED}
    assert {page.name: len(blocks(page)) for page in PAGES if page.name in WHOLE} == {
        "README.md": 1, "data.md": 2, "spaces.md": 1, "searches.md": 3, "nni.md": 3,
    }  # fmt: skip


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.name in NAMED], ids=lambda p: p.name
)
def test_blocks_run(page, place):
    names = {"npp": npp, "nn": nn, "torch": torch, "Path": Path, **NAMED[page.name]()}
    for number, code in enumerate(blocks(page)):
        if number == 1:
            first = names.get("found")
        if "rate_blocks" in code:
            names["found"] = first  # what is said of ratings is said of spaces, not of mixed edges
        if "search_spaces.students_of" in code:
            named_networks(names)
        if "ProxylessNAS(" in code:
            names["ProxylessNAS"] = pytest.importorskip("nni.nas.hub.pytorch").ProxylessNAS
        exec(compile(small(code), page.name, "exec"), names)


def named_networks(names):
    """The run of a teacher that a page goes on from, and its data."""
    words = ["train", "vgg8", "--data", "digits", "--steps", "2", "--set", "data.batch_size=8"]
    assert main([*words, "--quiet", "--run-dir", "runs/teacher"]) == 0
    names["data"] = readers.digits()


@pytest.mark.filterwarnings("ignore:.*is found to be not a nn.Module:RuntimeWarning")  # NNI's
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what NNI imports
def test_a_strategy_of_nnis(place):
    """The third block of that page."""
    pytest.importorskip("nni")
    from nni.nas.strategy import RegularizedEvolution

    (page,) = [page for page in PAGES if page.name == "searches.md"]
    data, loss = readers.digits(), nn.CrossEntropyLoss()
    names = {"npp": npp, "RegularizedEvolution": RegularizedEvolution, "data": data, "loss": loss}
    names["run"] = npp.train(readers.dense(), data, loss, steps=2, run_dir="runs/one")
    code = small(blocks(page)[2]).replace("strategy=strategy,", "strategy=strategy, held_out=data,")
    exec(compile(code, page.name, "exec"), names)
    assert names["best"] is not None and len(names["search"].candidates) == 12


def test_a_strategy_of_ones_own_proposes_the_stream(place):
    """The second block of the same."""
    (page,) = [page for page in PAGES if page.name == "searches.md"]
    names = {}
    exec(compile(blocks(page)[1], page.name, "exec"), names)
    run = npp.train(
        readers.dense(), readers.digits(), nn.CrossEntropyLoss(), steps=4, run_dir="runs/cycle",
        sampler=names["Cycle"](), feedback_delay=2,
    )  # fmt: skip
    assert [row[0] for row in read_stream(run.directory.stream)] == [0, 1, 0, 1]


def test_a_loss_with_parameters(place):
    """The second block of the page about data."""
    (page,) = [page for page in PAGES if page.name == "data.md"]
    names = {}
    exec(compile(blocks(page)[1], page.name, "exec"), names)

    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.digit, self.loop = nn.Linear(4, 3), nn.Linear(4, 1)

        def forward(self, x):
            return self.digit(x), self.loop(x)

    def data(seed, number):
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(seed * 1000 + number))
        return {"input": x, "target": x.argmax(1) % 3, "has_loop": (x[:, :1] > 0).float()}

    run = npp.train(
        npp.chain([nn.Linear(4, 4), Heads()]), data, names["LearnedWeights"](), steps=4,
        loss_fields=("target", "has_loop"), run_dir="runs/weights", verify=4,
    )  # fmt: skip
    assert run.manifest["verified"] == {"steps": 4}
    assert (run.shared("loss").log_variances != 0).all()


def test_recipes_are_read(place):
    """Blocks of TOML are recipe files, or parts of one."""
    found = [
        code
        for page in PAGES
        for code in re.findall(r"```toml\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    ]
    assert len(found) == 2
    for number, code in enumerate(found):
        Path(f"{number}.toml").write_text(code)
        run = npp.train(
            readers.dense(), readers.digits(), nn.CrossEntropyLoss(), steps=2,
            recipe=f"{number}.toml", run_dir=f"runs/{number}",
        )  # fmt: skip
        recipe = run.manifest["definition"]["recipe"]
        assert set(tomllib.loads(code)) - {"sampler", "optimizer"} <= set(recipe)


def test_what_is_a_sketch_is_python():
    """Blocks without a language that call naspipe."""
    sketches = [
        code for page in PAGES for language, code in fences(page) if not language and "npp." in code
    ]
    assert len(sketches) == 1  # MLflow and W&B, whose observers have tests of their own
    ast.parse(sketches[0])


def fences(page: Path) -> list[tuple[str, str]]:
    """Language and text of each fenced block that is not within a list."""
    parts = re.split(r"^```(.*)\n", page.read_text("utf-8"), flags=re.MULTILINE)
    return list(zip(parts[1::4], parts[2::4], strict=True))
