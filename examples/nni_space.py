"""A model space of NNI's: trained as a supernet, searched by NNI's strategy, out as NNI's model.

Needs ``pip install 'naspipe[nni]'``. Run it: ``python examples/nni_space.py``
"""

from __future__ import annotations

import naspipe as npp
from naspipe.data import open_data

# isort: split
from nni.nas.nn.pytorch import LayerChoice, ModelSpace, Repeat
from nni.nas.strategy import RegularizedEvolution
from torch import nn


def convolution(size):
    """16 channels to 16."""
    return nn.Sequential(nn.Conv2d(16, 16, size, padding=size // 2), nn.BatchNorm2d(16), nn.ReLU())


class Net(ModelSpace):
    """Two to four convolutions, each of a size of its own."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 16, 3, padding=1)
        self.blocks = Repeat(self.choice, (2, 4), label="depth")
        self.head = nn.Linear(16 * 8 * 8, 10)

    @staticmethod
    def choice(index):
        """A block: four candidates under one of NNI's labels."""
        layers = [convolution(1), convolution(3), convolution(5), nn.Identity()]
        return LayerChoice(layers, label=f"block{index}")

    def forward(self, x):
        """Images (batch, 1, 8, 8) to (batch, 10)."""
        return self.head(self.blocks(self.stem(x)).flatten(1))


def main(run_dir="runs/nni", steps=300, stages=2, budget=20):
    """Train and search; returns the run, the best subnet, and NNI's model of it."""
    space, loss = npp.from_nni(Net()), nn.CrossEntropyLoss()
    data, held_out = (open_data("digits", batch_size=64, split=at) for at in ("train", "valid"))
    run = npp.train(
        space, data, loss, optimizer="Adam", lr=0.003, settings={"rule.stem": "lag(2)"},
        steps=steps, stages=stages, run_dir=run_dir,
    )  # fmt: skip
    strategy = RegularizedEvolution(population_size=8, sample_size=4, seed=1)
    search = npp.search_subnets(
        run, data, loss, held_out=held_out, strategy=strategy, score="top1", budget=budget, delay=4
    )  # fmt: skip
    best = search.ranked()[0]
    return run, best, npp.to_nni(run, best.choices, data=data, calibrate=search.calibration)


if __name__ == "__main__":
    run, best, net = main()
    print(f"top-1 {best.scores.top1:.2f} of {run.space.decisions.sample_of(best.choices)}\n{net}")
