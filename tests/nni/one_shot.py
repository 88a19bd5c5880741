"""NNI's own one-shot model of a space, which slices weights by itself, and a plain loop over it."""

from __future__ import annotations

import torch
from nni.nas.oneshot.pytorch.strategy import RandomOneShot
from nni.nas.oneshot.pytorch.supermodule.base import BaseSuperNetModule
from nni.nas.oneshot.pytorch.supermodule.operation import MixedBatchNorm2d

from tests.nni.plain import NniLoop

EPSILON = {"MobileNetV3Space": 1e-3}
"""What NNI's models set after their constructors, and its one-shot modules miss."""


def one_shot(model_space):
    name = type(model_space).__name__
    model = RandomOneShot().mutate_model(model_space).train()
    for module in model.modules():
        if name in EPSILON and isinstance(module, MixedBatchNorm2d):
            module.init_arguments["eps"] = EPSILON[name]
    return model


def set_sample(model, sample):
    memo = dict(sample)
    for module in model.modules():
        if isinstance(module, BaseSuperNetModule):
            memo |= module.resample(memo)
    assert {label: memo[label] for label in sample} == dict(sample)


def named_of(space, layers, kind="named_parameters"):
    """The tensors of a chain's layers by NNI's names; of a list, each candidate has its own."""
    found = {}
    for candidates in layers:
        for layer in candidates:
            parts = layer if isinstance(layer, torch.nn.ModuleList) else [layer]
            for part in parts:
                found |= dict(getattr(part, kind)())
    return found


class OneShotLoop(NniLoop):
    """The same loop over NNI's one-shot model."""

    def choose(self, sample):
        set_sample(self.space, sample)
