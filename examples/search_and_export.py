"""Search the trained weights within limits, write the best subnet as files, load it alone.

``exported/model.py`` needs no naspipe. Run it: ``python examples/search_and_export.py``
"""

from __future__ import annotations

import runpy
from pathlib import Path

import torch
from digits_parts import Digits, accuracy, space
from torch import nn

import naspipe as npp


def main(run_dir="runs/searched-digits", steps=300, stages=2, budget=40):
    """Train, search, export; returns the search and the loaded network."""
    train = npp.from_dataset(Digits(), batch_size=64)
    held_out = npp.from_dataset(Digits(held_out=True), batch_size=99, shuffle=False)
    loss, small = nn.CrossEntropyLoss(), {"params": 12_000}
    run = npp.train(
        space(),
        train,
        loss,
        optimizer="Adam",
        lr=0.003,
        steps=steps,
        stages=stages,
        run_dir=run_dir,
    )
    search = npp.search_subnets(
        run, train, loss, held_out=held_out, score="top1", budget=budget, limits=small
    )
    best = search.ranked()[0]
    exported = Path(run_dir).with_name("exported")
    npp.export_subnet(run, best.choices, exported, data=train, calibrate=search.calibration)
    network = runpy.run_path(str(exported / "model.py"))["load"]()
    return search, network


def alone(network):
    """The share of the held-out images that the loaded network is right about."""
    images = Digits(held_out=True)
    with torch.no_grad():
        return float(accuracy(network(images.images), images.targets))


if __name__ == "__main__":
    search, network = main()
    for each in search.ranked()[:5]:
        print(f"{each.scores.top1:.3f}  {each.cost.params:,.0f} parameters  {each.choices}")
    print(f"the first one, loaded without naspipe: {alone(network):.3f}")
