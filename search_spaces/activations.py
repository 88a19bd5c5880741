"""The activations of every family of spaces, as torch modules."""

from __future__ import annotations

from torch import nn


def activation_module(name: str) -> nn.Module:
    """A new module of a name that a space lists."""
    made: dict[str, nn.Module] = {
        "none": nn.Identity(),
        "relu": nn.ReLU(),
        "swish": nn.SiLU(),
        "leaky relu": nn.LeakyReLU(0.1),  # at 0.01 hardly another layer than relu
    }
    return made[name]
