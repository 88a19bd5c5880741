"""Optimizer steps of a layer whose rule or recipe requires more than a plain step.

All data for this is stored in the optimizer's state, so that it moves with its layer to other
stages and is part of checkpoints, digests and comparisons.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from naspipe.config.errors import ConfigError
from naspipe.config.recipe import Recipe
from naspipe.config.rules import OwnStep
from naspipe.machine.device_waits import Wait, count

AVERAGE = "naspipe_ema"
"""The key of a parameter's moving average in its optimizer state."""


def add_hooks(
    optimizer: torch.optim.Optimizer, recipe: Recipe, parameters: Sequence[torch.nn.Parameter]
) -> None:
    """Make every step of one layer's optimizer clip and average as the recipe specifies.

    The gradient of the whole layer is clipped by its norm, as in ``clip_grad_norm_``; norms are
    added in the order of ``parameters``. A parameter's first step copies it into its average, and
    later steps perform ``average.lerp_(parameter, 1 - decay)``. Parameters without a gradient, and
    their averages, are not changed.
    """
    if recipe.clip_layer_norm:

        def clip(*_: Any) -> None:
            torch.nn.utils.clip_grad_norm_(_with_gradient(parameters), recipe.clip_layer_norm)

        optimizer.register_step_pre_hook(clip)
    if recipe.ema:

        @torch.no_grad()
        def average(stepped: torch.optim.Optimizer, *_: Any) -> None:
            for parameter in _with_gradient(parameters):
                # This follows the step, because most optimizers regard an empty state as a first
                # step.
                state = stepped.state[parameter]
                if AVERAGE in state:
                    state[AVERAGE].lerp_(parameter, 1.0 - recipe.ema)
                else:
                    state[AVERAGE] = parameter.detach().clone()

        optimizer.register_step_post_hook(average)


def _with_gradient(parameters: Sequence[torch.nn.Parameter]) -> list[torch.nn.Parameter]:
    return [each for each in parameters if each.grad is not None]


SUM = "naspipe_sum"
"""Key in a parameter's state: the sum of its gradients since the layer last changed."""
COUNT = "naspipe_count"
"""Key in a parameter's state: the number of gradients in the sum."""
GROUP = "naspipe_group"
"""Key in an optimizer's group of weights: the number of the parameter group; 0 if it has none."""
FACTOR = "naspipe_factor"
"""Key in such a group: the factor of every step's rate. Groups without it have a constant rate."""
UPDATE = "naspipe_update"
"""Key in a parameter's state: the change in its last step; zeros if it had no gradient."""
AHEAD = "naspipe_ahead"
"""Key in a parameter's state: how many steps ahead readers predict it, if this number grows."""
READ_STATES = (UPDATE, AHEAD)
"""The optimizer state that :func:`ahead` reads, which copies of a layer need."""

Used = Mapping[torch.nn.Parameter, torch.Tensor]
_WHOLE: Used = {}


def with_momentum(recipe: Recipe, own: OwnStep, known: Mapping[str, Any]) -> Recipe:
    """Return the recipe with a layer's own momentum, if the layer has one.

    ``known`` maps the optimizer's options to their defaults.
    """
    if own.momentum is None:
        return recipe
    options = {**known, **recipe.optimizer_options}
    changed: dict[str, Any]
    if "momentum" in known:
        changed = {"momentum": own.momentum}
    elif "betas" in known:
        changed = {"betas": (own.momentum, options["betas"][1])}
    else:
        raise ConfigError(
            f"a rule's momentum={own.momentum}: expected an optimizer with an option momentum or "
            f"betas, found {recipe.optimizer}"
        )
    return replace(recipe, optimizer_options={**recipe.optimizer_options, **changed})


def is_moved(value: object) -> bool:
    """Return True if a value of an optimizer's state moves between devices with its layer."""
    return isinstance(value, torch.Tensor) and value.dim() > 0


@torch.no_grad()
def take_step(
    optimizer: torch.optim.Optimizer, own: OwnStep, step: int, lr: float, used: Used = _WHOLE
) -> None:
    """Take one step of a layer's optimizer, or only accumulate the gradients for a later step.

    Args:
        optimizer: the optimizer of one layer, whose parameters have the gradients of one step.
        own: how the layer steps.
        step: the number of the step.
        lr: the recipe's rate.
        used: masks in host memory of the entries to step, for parameters that are not stepped as a
            whole.
    """
    set_rates(optimizer, own, lr)
    parameters = list(parameters_of(optimizer))
    before = {each: each.clone() for each in parameters if own.predicts and each.grad is not None}
    if own.every == 1:
        if used:
            with _standing_still(optimizer, used):
                step_of(optimizer)
        else:
            step_of(optimizer)
    else:
        for parameter in parameters:
            if parameter.grad is not None:
                state = optimizer.state[parameter]
                if SUM not in state:
                    state[SUM], state[COUNT] = torch.zeros_like(parameter), 0
                state[SUM].add_(parameter.grad)
                state[COUNT] += 1
                parameter.grad = None
        if own.applies(step):
            _step_with_mean(optimizer, parameters, own.every)
    for parameter in parameters if own.predicts else ():
        # Skipped before the first step: most optimizers regard an empty state as a first step.
        if parameter in before or UPDATE in optimizer.state.get(parameter, {}):
            state = optimizer.state[parameter]
            state[UPDATE] = parameter - before.get(parameter, parameter)
            if own.over:
                state[AHEAD] = own.predicts_of(step)


def set_rates(optimizer: torch.optim.Optimizer, own: OwnStep, lr: float) -> None:
    for group in optimizer.param_groups:
        if FACTOR in group:
            group["lr"] = lr * own.lr * group[FACTOR]


def step_of(optimizer: torch.optim.Optimizer) -> None:
    """Take one step without torch's wrapper for its profiler and hooks, if possible.

    Passing the step's name to the profiler takes a quarter of a small layer's step. If a hook or a
    different wrapper is present, the step is called as usual.
    """
    if is_bare(optimizer):
        type(optimizer).step.__wrapped__(optimizer)  # type: ignore[attr-defined]
    else:
        optimizer.step()


def is_bare(optimizer: torch.optim.Optimizer) -> bool:
    """Return True if the step is that of the optimizer's class, without hooks."""
    step = getattr(type(optimizer), "step", None)
    if getattr(step, "__code__", None) is not _WRAPPER or "step" in vars(optimizer):
        return False
    own = optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks
    return not any(map(len, (*_EVERYONES, *own)))


_WRAPPER = torch.optim.Optimizer.profile_hook_step(lambda: None).__code__
_optimizer = sys.modules[torch.optim.Optimizer.__module__]
_EVERYONES: tuple[Sized, Sized] = (
    _optimizer._global_optimizer_pre_hooks,
    _optimizer._global_optimizer_post_hooks,
)
"""Hooks that apply to all optimizers."""


def ahead(
    parameter: torch.nn.Parameter, optimizer: torch.optim.Optimizer | None, own: OwnStep
) -> torch.Tensor:
    """Return a detached copy of a parameter as predicted for readers of its layer."""
    value = parameter.detach()
    if optimizer is None or not own.predicts or UPDATE not in optimizer.state.get(parameter, {}):
        return value.clone()
    state = optimizer.state[parameter]
    if not (steps := state.get(AHEAD, own.predicts)):
        return value.clone()
    options = group_with(parameter, optimizer)
    # The fraction of an update that the next update repeats without a gradient.
    momentum = float(
        options["momentum"] if "momentum" in options else options.get("betas", (0.0,))[0]
    )
    far = sum(momentum**step for step in range(1, steps + 1))
    update: torch.Tensor = state[UPDATE]
    return value + update * far


@contextmanager
def _standing_still(optimizer: torch.optim.Optimizer, used: Used) -> Iterator[None]:
    """Restrict a step to the used entries of these parameters and of their state.

    The initial state of unused entries is zero, and the initial average is the parameter.
    """
    before = {
        parameter: (
            parameter.clone(),
            {name: value.clone() for name, value in _alike(optimizer, parameter)},
        )
        for parameter in used
    }
    yield
    for parameter, (own, kept) in before.items():
        if not parameter.is_cpu:
            count(Wait.ENTRIES)
        is_used = used[parameter].to(parameter.device)
        for name, value in _alike(optimizer, parameter):
            begun = own if name == AVERAGE else torch.zeros_like(value)
            value.copy_(torch.where(is_used, value, kept.get(name, begun)))
        parameter.copy_(torch.where(is_used, parameter, own))


def _alike(
    optimizer: torch.optim.Optimizer, parameter: torch.Tensor
) -> list[tuple[str, torch.Tensor]]:
    """Return the state that an optimizer keeps for each entry of a parameter."""
    state = optimizer.state.get(parameter, {})
    tensors = [(name, value) for name, value in state.items() if torch.is_tensor(value)]
    return [pair for pair in tensors if pair[1].dim() and pair[1].shape == parameter.shape]


def _step_with_mean(
    optimizer: torch.optim.Optimizer, parameters: list[torch.nn.Parameter], every: int
) -> None:
    """Step with the mean of the accumulated gradients; parameters without any are not changed."""
    gathered = {}
    for parameter in parameters:
        state = optimizer.state.get(parameter, {})
        if state.get(COUNT):
            # Removed for the step: most optimizers regard an empty state as a first step.
            gathered[parameter] = state.pop(SUM)
            del state[COUNT]
            parameter.grad = gathered[parameter] / every
    step_of(optimizer)
    for parameter, total in gathered.items():
        parameter.grad = None
        optimizer.state[parameter] |= {SUM: total.zero_(), COUNT: 0}


def group_with(
    parameter: torch.nn.Parameter, optimizer: torch.optim.Optimizer
) -> Mapping[str, Any]:
    groups = optimizer.param_groups
    return next(each for each in groups if any(one is parameter for one in each["params"]))


def parameters_of(optimizer: torch.optim.Optimizer) -> Iterator[torch.nn.Parameter]:
    for group in optimizer.param_groups:
        yield from group["params"]
