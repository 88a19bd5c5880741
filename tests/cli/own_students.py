"""A user's own students of a VGG-8 on digits, for the command line."""

from __future__ import annotations

from torch import nn
from torch.nn import functional

import naspipe as npp


class Absolute:
    """A loss of the user's."""

    fields = ()

    def distill(self, output, taught):
        return functional.l1_loss(output, taught)


loss = Absolute()


def _maps(inputs, outputs, *more):
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), *more)


def students():
    """Of the three parts that it is cut into at its third and its fifth layer."""
    first = npp.Space(
        "own",
        [
            npp.Block([lambda: _maps(1, 8), lambda: _maps(1, 16, nn.Conv2d(16, 8, 1))]),
            npp.Shared("last", lambda: _maps(8, 16, nn.MaxPool2d(2))),
        ],
    )
    head = nn.Sequential(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32, 10))
    return [first, _maps(16, 32, nn.MaxPool2d(2)), head]


listed = students()


def broken():
    raise ValueError("no students today")


number = 7
mixed = [listed[1], "head"]


def far(output, taught):
    """A measure of the user's."""
    return (output - taught).abs().max()
