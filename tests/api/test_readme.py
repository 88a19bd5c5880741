"""What the README and the pages show runs as it stands, and what they say of its results is so."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]


@pytest.fixture
def run_code(tmp_path, monkeypatch):
    """Runs a page's first example as the module of a user's, and gives the names that it leaves."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def run(page: str) -> dict:
        code = re.search(r"```python\n(.*?)```", (ROOT / page).read_text("utf-8"), re.DOTALL)
        name = f"example_of_{Path(page).stem.lower()}"
        (tmp_path / f"{name}.py").write_text(code[1])
        monkeypatch.delitem(sys.modules, name, raising=False)
        return vars(importlib.import_module(name))

    return run


def test_the_example(run_code, tmp_path, capsys):
    names = run_code("README.md")
    run = names["run"]
    assert len(run.losses) == 200 and sum(run.losses[-20:]) < 0.2 * sum(run.losses[:20])
    assert run.path.absolute().parent == tmp_path / "runs"
    assert run.losses == names["npp"].Run(names["space"], run.path).losses
    order = run.access_order(3, 1)
    assert capsys.readouterr().out == f"{run.losses[-1]} {order}\n"
    steps = order.split("-")
    assert steps[0::2] == [step.replace("B", "F") for step in steps[1::2]]
    trained = run.layer(3, 1).state_dict()
    assert trained.keys() == names["Residual"](64).state_dict().keys()
    assert torch.isfinite(trained["layers.1.weight"]).all()


def test_the_example_names_no_directory_that_a_second_run_would_find():
    code = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    assert "npp.train(" in code[1] and "run_dir" not in code[1]


def test_a_search_from_python(run_code, capsys):
    names = run_code("docs/searches.md")
    search, largest = names["search"], [block.candidates[-1]() for block in names["space"].blocks]
    best = search.ranked()[0]
    assert len(search.candidates) == 20 and best.scores.top1 > 0.9
    assert all(each.cost.params <= 30_000 for each in search.candidates)
    assert sum(weight.numel() for part in largest for weight in part.parameters()) > 30_000
    assert capsys.readouterr().out == f"{best.choices} {best.scores}\n"
