"""The README's example runs as it stands, and what it says of its results is so."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from naspipe.cli.main import main

README = Path(__file__).parents[2] / "README.md"


def test_the_example(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _ = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    names = {}
    exec(compile(code, "README.md", "exec"), names)
    run = names["run"]
    assert len(run.losses) == 50
    assert run.losses == names["npp"].Run(names["space"], tmp_path / "runs/mine").losses
    steps = run.access_order(3, 1).split("-")
    assert steps[0::2] == [step.replace("B", "F") for step in steps[1::2]]
    trained = run.layer(3, 1).state_dict()
    fresh = names["Residual"](16, 3).state_dict()
    assert trained.keys() == fresh.keys()
    assert trained["norm.num_batches_tracked"] == len(steps) // 2
    assert torch.isfinite(trained["conv.weight"]).all()


def test_teachers_that_come_and_go(tmp_path, monkeypatch, capsys):
    """The commands of that paragraph, one after the other."""
    monkeypatch.chdir(tmp_path)
    found = r"\*\*Teachers that come and go\.\*\*.*?\n\n((?:    naspipe [^\n]*\n)+)"
    (paragraph,) = re.findall(found, README.read_text(), re.DOTALL)
    commands = [line.split()[1:] for line in paragraph.splitlines()]
    assert len(commands) == 5
    for words in commands:
        assert main(words) == 0, words
    assert "IDENTICAL" in capsys.readouterr().out.upper()
