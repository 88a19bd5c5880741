"""A plain PyTorch loop over NNI's own modules, in NNI's own forward; nothing of naspipe.

NNI's forward of a space takes the choices that its modules note for a dry run. Random draws are
keyed as everywhere, so the loop is told which modules are the first of a block that draws.
"""

from __future__ import annotations

import torch
from nni.nas.nn.pytorch import InputChoice, LayerChoice, Repeat

from tests.keyed_draws import keyed_seed
from tests.oracle import bits


def set_architecture(space, sample):
    for module in space.modules():
        if isinstance(module, LayerChoice | InputChoice):
            module._dry_run_choice = sample[module.label]
        elif isinstance(module, Repeat) and not isinstance(module.depth_choice, int):
            module._dry_run_depth = module.depth_choice.freeze(sample)


def _seeding(seed):
    def hook(*_):
        torch.manual_seed(seed)

    return hook


class NniLoop:
    """One optimizer over all parameters: those without a gradient are left alone."""

    def __init__(self, space, lr, drawing=()):
        self.space, self.losses, self.drawing = space.train(), [], dict(drawing)
        self.optimizer = torch.optim.SGD(space.parameters(), lr=lr, momentum=0.9)

    def choose(self, sample):
        set_architecture(self.space, sample)

    def step(self, seed, y, sample, batch):
        self.choose(sample)
        hooks = [
            self.space.get_submodule(path).register_forward_pre_hook(
                _seeding(keyed_seed(f"{seed}/{y}/{block}/0"))
            )
            for path, block in self.drawing.items()
        ]
        loss = torch.nn.functional.cross_entropy(self.space(batch["input"]), batch["target"])
        for hook in hooks:
            hook.remove()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.losses.append(loss.detach())

    def tensors(self):
        """By kind and NNI's own name."""
        found = {f"buffer/{name}": bits(t) for name, t in self.space.named_buffers()}
        for name, parameter in self.space.named_parameters():
            found[f"param/{name}"] = bits(parameter)
            state = self.optimizer.state.get(parameter, {})
            for key, value in state.items():
                found[f"optimizer/{name}/{key}"] = bits(value)
        return found
