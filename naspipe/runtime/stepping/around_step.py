"""What a recipe does around each optimizer step of a layer: clip before it, average behind it.

Both are hooks of the optimizer, so that whoever steps it (a WRITE, the profile, whoever learns the
sizes of its state) does the same. The average lives in the optimizer's state, and goes with its
layer wherever that goes: to other stages, into checkpoints, digests and comparisons.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from naspipe.config.definition import Recipe

AVERAGE = "naspipe_ema"
"""Where in a parameter's optimizer state its moving average is."""


def add_hooks(
    optimizer: torch.optim.Optimizer, recipe: Recipe, parameters: Sequence[torch.nn.Parameter]
) -> None:
    """Make every step of one layer's optimizer clip and average as the recipe says.

    The gradient of the whole layer is clipped by its norm, as by ``clip_grad_norm_``. A
    parameter's first step copies it into its average, each later one moves the average towards
    it: ``average.lerp_(parameter, 1 - decay)``. A parameter without a gradient is left alone, and
    so is its average. ``parameters`` are the layer's in their order, in which norms are added up.
    """
    if recipe.clip_layer_norm:

        def clip(*_: Any) -> None:
            torch.nn.utils.clip_grad_norm_(_with_gradient(parameters), recipe.clip_layer_norm)

        optimizer.register_step_pre_hook(clip)
    if recipe.ema:

        def follow(stepped: torch.optim.Optimizer, *_: Any) -> None:
            _average(stepped, parameters, recipe.ema)

        optimizer.register_step_post_hook(follow)


@torch.no_grad()
def _average(
    optimizer: torch.optim.Optimizer, parameters: Sequence[torch.nn.Parameter], decay: float
) -> None:
    for parameter in _with_gradient(parameters):
        # Behind the step: to most optimizers an empty state means that they begin.
        state = optimizer.state[parameter]
        if AVERAGE in state:
            state[AVERAGE].lerp_(parameter, 1.0 - decay)
        else:
            state[AVERAGE] = parameter.detach().clone()


def _with_gradient(parameters: Sequence[torch.nn.Parameter]) -> list[torch.nn.Parameter]:
    return [each for each in parameters if each.grad is not None]
