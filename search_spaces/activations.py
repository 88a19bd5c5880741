"""The activations of every family of spaces, as torch modules."""

from __future__ import annotations

from torch import nn


def activation_module(name: str) -> nn.Module:
    made: dict[str, nn.Module] = {
        "none": nn.Identity(),
        "relu": nn.ReLU(),
        "swish": nn.SiLU(),
        "leaky relu": nn.LeakyReLU(0.1),  # with 0.01 it would hardly differ from relu
    }
    return made[name]
