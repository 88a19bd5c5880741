"""What is wrong with an elastic layer is said in one line before anything is written."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

import naspipe as npp
from naspipe import elastic
from naspipe.config.errors import ConfigError

LOSS = nn.CrossEntropyLoss()
WIDE = {"width": [4, 8]}


def data(seed, number):
    draw = torch.Generator().manual_seed(number)
    target = torch.randint(0, 2, (4,), generator=draw)
    return {"input": torch.randn(4, 8, generator=draw), "target": target}


class Remembers(nn.Linear):
    """As in loops that set what is active before they call the network."""

    active = 8

    def forward(self, x, *, width):
        self.active = width
        return functional.linear(x, self.weight[: self.active], self.bias[: self.active])


def linear():
    return elastic.Linear(8, 8, outputs="width")


def norm():
    return elastic.Sequential(linear(), elastic.BatchNorm1d(8, inputs="width"))


def plain():
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU())


@pytest.mark.parametrize(
    ("layer", "how", "said"),
    [
        (lambda: npp.Elastic("fc", linear, {"widht": [4, 8]}), {},
         r"layer fc: expected settings that its Linear takes, width, found 'widht' \(did you mean"),
        (lambda: npp.Elastic("fc", linear, {**WIDE, "depth": [1]}), {},
         "expected settings that its Linear takes, width, found 'depth'"),
        (lambda: npp.Elastic("fc", norm, WIDE), {"norms": "deferred"},
         "norms=deferred: expected no running statistics in an elastic layer, .* in layer fc; use"),
        (lambda: npp.Elastic("fc", norm, WIDE, npp.Lag(2)), {},
         r"layer fc: its BatchNorm1d keeps running statistics, which rule lag\(2\) does not allow"),
        (lambda: npp.Elastic("fc", lambda: Remembers(8, 8), WIDE), {},
         r"layer fc\[\d\]: expected its setting to be an argument .* with another active"),
        (lambda: npp.Elastic("fc", linear, {"width": [9]}), {},
         r"layer fc\[9\] \(Linear\): expected .* width=9: expected 1 to 8, as large as"),
        (lambda: npp.Elastic("fc", plain, WIDE, apply=lambda m, x, *, size: m(x)), {},
         "expected settings that its apply=<lambda> takes, m, x, size, found 'width'"),
        (lambda: npp.Elastic("fc", plain, WIDE), {}, "that its Sequential takes, input, found"),
        (lambda: npp.Elastic("fc", plain, {"width": [8]}, apply=lambda m, x, *, width: m(x)),
         {"passes": "sandwich:1"}, "passes=sandwich: expected a largest and a smallest subnet"),
    ],
)  # fmt: skip
def test_in_one_line(tmp_path, layer, how, said):
    space = npp.Space("mine", [layer(), npp.Shared("head", lambda: elastic.Linear(8, 2))])
    with pytest.raises(ConfigError, match=said) as found:
        npp.train(space, data, LOSS, steps=4, run_dir=tmp_path / "run", progress=False, recipe=how)
    assert "\n" not in str(found.value)
    assert not (tmp_path / "run").exists()
