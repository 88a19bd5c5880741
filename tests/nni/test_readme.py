"""The page's way from an NNI space to a trained network, as it stands there."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import torch
from torch import nn

from naspipe.store.checkpoints import read_checkpoint
from naspipe.store.losses import read_metrics
from naspipe.worker.checkpoints.restored import from_raw

PAGE = Path(__file__).parents[2] / "docs/nni.md"

ALONE = """
import sys
sys.modules["naspipe"] = sys.modules["nni"] = None
sys.path.insert(0, "exported")
import model, torch
torch.set_num_threads(1)
torch.save(model.load()(torch.load("input.pt")), "output.pt")
"""


def test_the_example(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, *_ = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    names = {}
    exec(compile(code, "docs/nni.md", "exec"), names)
    run, best, space = names["run"], names["best"], names["space"]
    assert len(run.losses) == len(read_metrics(run.directory.metrics)) == 400
    recipe = json.loads(run.directory.manifest.read_text())["definition"]["recipe"]
    assert (recipe["lr"], recipe["schedule"], recipe["label_smoothing"]) == (0.1, "linear", 0.1)
    assert len(names["search"].candidates) == 20 and best.scores.top1 > 0.3
    sample = space.decisions.sample_of(best.choices)
    assert sample["depth"] in range(2, 7) and space.decisions.choices_of(sample) == best.choices
    batch = names["held_out"](0, 0)["input"]
    torch.save(batch, "input.pt")
    subprocess.run([sys.executable, "-c", ALONE], check=True)
    net = trained(names["Net"](), run).eval()
    norms = [each for each in net.modules() if isinstance(each, nn.BatchNorm2d)]
    for norm in norms:  # as the search takes statistics
        norm.reset_running_stats()
        norm.momentum = None
        norm.train()
    for number in range(4):
        outputs(net, sample, names["data"](0, number)["input"])
    for norm in norms:
        norm.eval()
    assert torch.equal(torch.load("output.pt"), outputs(net, sample, batch))
    assert torch.equal(torch.load("output.pt"), names["found"](batch))


@torch.no_grad()
def outputs(net, sample, hidden):
    hidden = net.stem(hidden)
    for index in range(sample["depth"]):
        hidden = net.blocks.blocks[index].get_submodule(str(sample[f"block{index}"]))(hidden)
    return net.head(hidden.mean((2, 3)))


def trained(net, run):
    """NNI's own modules with what the run left; layers that it never used stay as they were."""
    state = {}
    for key, raw in read_checkpoint(run.directory.checkpoint()).tensors.items():
        _, _, kind, name = key.split("/", 3)
        if kind in ("param", "buffer"):
            state[name] = from_raw(raw)
    assert not net.load_state_dict(state, strict=False).unexpected_keys
    return net
