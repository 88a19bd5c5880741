"""A space in the script that is run: trained, searched and exported, without NNI's warnings."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from naspipe.config.user_code import is_same_name

SCRIPT = """\
import naspipe
import nni.nas.nn.pytorch as nas
import torch
from torch import nn

from naspipe.cli.main import main


class Own(nas.ModelSpace):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(4, 6)
        self.op = nas.LayerChoice([nn.Linear(6, 6), nn.Identity()], label="op")
        self.last = Twice()

    def forward(self, x):
        return self.last(self.op(self.stem(x)))


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 6)

    def forward(self, x):
        return self.inner(self.inner(x))


space = naspipe.from_nni(Own())


def data(seed, number):
    draw = torch.Generator().manual_seed(seed * 1000 + number)
    return {"input": torch.randn(5, 4, generator=draw), "target": torch.arange(5) % 3}


if __name__ == "__main__":
    run = naspipe.train(
        space, data, nn.CrossEntropyLoss(), steps=4, run_dir="run", loss_fields=("target",)
    )
    found = naspipe.search_subnets(run, data, nn.CrossEntropyLoss(), held_out=data, budget=2,
                                   validate=1, name="here")
    naspipe.export_subnet(run, found.ranked()[0].choices, "here")
    names = ["--space", "script:space", "--data", "script:data"]
    assert main(["search", "run", *names, "--validation", "script:data", "--budget", "2",
                 "--validate", "1", "--quiet"]) == 0
    assert main(["export", "run", *names, "--subnet", "best", "-o", "there"]) == 0
"""


def test_what_stands_in_a_script_is_found_again(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    root = str(Path(__file__).parent.parent.parent)
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300,
        env={**os.environ, "PYTHONPATH": root, "PYTHONWARNINGS": "default"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    for place in ("here", "there"):
        assert "class Twice" in (tmp_path / place / "model.py").read_text()


def test_data_of_a_script_have_two_names() -> None:
    assert is_same_name("__main__.data", "script.data") and is_same_name("a.b", "a.b")
    assert is_same_name("folder.script.Batches", "__main__.Batches")
    assert not is_same_name("__main__.data", "script.other")
    assert not is_same_name("one.data", "other.data")
    assert not is_same_name("__main__.data", None)
