"""NNI's own one-shot model of a space, which slices weights by itself, and a plain loop over it."""

from __future__ import annotations

import torch
from nni.nas.oneshot.pytorch.strategy import RandomOneShot
from nni.nas.oneshot.pytorch.supermodule.base import BaseSuperNetModule
from nni.nas.oneshot.pytorch.supermodule.operation import MixedBatchNorm2d

from tests.nni.plain import _seeding
from tests.oracle import bits, keyed_seed

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


class OneShotLoop:
    """SGD with momentum over all parameters; ``drawing`` has the blocks that draw."""

    def __init__(self, model, lr, drawing):
        self.model, self.losses, self.drawing = model, [], dict(drawing)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)

    def step(self, seed, y, sample, batch):
        set_sample(self.model, sample)
        hooks = [
            self.model.get_submodule(path).register_forward_pre_hook(
                _seeding(keyed_seed(f"{seed}/{y}/{block}/0"))
            )
            for path, block in self.drawing.items()
        ]
        loss = torch.nn.functional.cross_entropy(self.model(batch["input"]), batch["target"])
        for hook in hooks:
            hook.remove()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.losses.append(loss.detach())

    def tensors(self):
        found = {}
        for name, parameter in self.model.named_parameters():
            found[f"param/{name}"] = bits(parameter)
            for key, value in self.optimizer.state.get(parameter, {}).items():
                found[f"optimizer/{name}/{key}"] = bits(value)
        return found
