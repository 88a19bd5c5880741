"""How one layer's optimizer steps where its rule says otherwise than the recipe.

What that takes is in the optimizer's state, so that it goes with its layer wherever that goes: to
other stages, into checkpoints, digests and comparisons.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from naspipe.config.definition import Recipe
from naspipe.config.errors import ConfigError
from naspipe.config.rules import OwnStep
from naspipe.machine.device_waits import Wait, count

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


SUM = "naspipe_sum"
"""In a parameter's state: its gradients since the layer was changed last, added up."""
COUNT = "naspipe_count"
"""How many they are."""
GROUP = "naspipe_group"
"""In a group of an optimizer of weights: the number of the parameter group; 0 for the rest."""
FACTOR = "naspipe_factor"
"""So, too: of every step's rate. Groups without it have a rate that is constant."""
UPDATE = "naspipe_update"
"""What its last step added to it; zeros where it had no gradient."""
AHEAD = "naspipe_ahead"
"""How many steps on its readers see it, where that grows."""
READ_STATES = (UPDATE, AHEAD)
"""The optimizer state that :func:`ahead` reads: a copy of a layer is not readable without it."""


Used = Mapping[torch.nn.Parameter, torch.Tensor]
_WHOLE: Used = {}


def with_momentum(recipe: Recipe, own: OwnStep, known: Mapping[str, Any]) -> Recipe:
    """The recipe with a layer's own momentum, where it has one.

    Args:
        recipe: names the optimizer.
        own: the layer's.
        known: the optimizer's options, and their defaults.

    Raises:
        ConfigError: when the optimizer has none.
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
    """Whether a value of an optimizer's state moves with its layer."""
    return isinstance(value, torch.Tensor) and value.dim() > 0


@torch.no_grad()
def take_step(
    optimizer: torch.optim.Optimizer, own: OwnStep, step: int, lr: float, used: Used = _WHOLE
) -> None:
    """One step of a layer's optimizer, or only gather the gradients that are there for it.

    Args:
        optimizer: of one layer; its parameters have the gradients of one step.
        own: how it steps.
        step: its number.
        lr: by the recipe.
        used: of the parameters that are not stepped as a whole, which entries are; in host memory.
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
        _gather(optimizer, parameters)
        if own.applies(step):
            _apply(optimizer, parameters, own.every)
    for parameter in parameters if own.predicts else ():
        # Not before its first step: to most optimizers an empty state means that they begin.
        if parameter in before or UPDATE in optimizer.state.get(parameter, {}):
            state = optimizer.state[parameter]
            state[UPDATE] = parameter - before.get(parameter, parameter)
            if own.over:
                state[AHEAD] = own.predicts_of(step)


def set_rates(optimizer: torch.optim.Optimizer, own: OwnStep, lr: float) -> None:
    """Those of its groups, from the recipe's."""
    for group in optimizer.param_groups:
        if FACTOR in group:
            group["lr"] = lr * own.lr * group[FACTOR]


def step_of(optimizer: torch.optim.Optimizer) -> None:
    """One step, without what torch wraps around every optimizer's for its profiler and for hooks.

    To name the step to the profiler costs a quarter of a small layer's step. Where there is a hook,
    or whatever else than torch's wrapper, it is called as usual.
    """
    if is_bare(optimizer):
        type(optimizer).step.__wrapped__(optimizer)  # type: ignore[attr-defined]
    else:
        optimizer.step()


def is_bare(optimizer: torch.optim.Optimizer) -> bool:
    """Whether its step is its kind's, and calls nothing before it or behind it."""
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
"""Hooks of all optimizers."""


def ahead(
    parameter: torch.nn.Parameter, optimizer: torch.optim.Optimizer | None, own: OwnStep
) -> torch.Tensor:
    """A parameter as readers of its layer see it, in memory of its own, not for a gradient."""
    value = parameter.detach()
    if optimizer is None or not own.predicts or UPDATE not in optimizer.state.get(parameter, {}):
        return value.clone()
    state = optimizer.state[parameter]
    if not (steps := state.get(AHEAD, own.predicts)):
        return value.clone()
    momentum = _momentum(group_with(parameter, optimizer))
    far = sum(momentum**step for step in range(1, steps + 1))
    update: torch.Tensor = state[UPDATE]
    return value + update * far


@contextmanager
def _standing_still(optimizer: torch.optim.Optimizer, used: Used) -> Iterator[None]:
    """Let a step change of these parameters, and of what is kept of them, what is used alone.

    What the optimizer keeps begins as zero where it was not used; an average, as the parameter.
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
    """What an optimizer keeps of each entry of a parameter."""
    state = optimizer.state.get(parameter, {})
    tensors = [(name, value) for name, value in state.items() if torch.is_tensor(value)]
    return [pair for pair in tensors if pair[1].dim() and pair[1].shape == parameter.shape]


def _gather(optimizer: torch.optim.Optimizer, parameters: list[torch.nn.Parameter]) -> None:
    for parameter in parameters:
        if parameter.grad is not None:
            state = optimizer.state[parameter]
            if SUM not in state:
                state[SUM], state[COUNT] = torch.zeros_like(parameter), 0
            state[SUM].add_(parameter.grad)
            state[COUNT] += 1
            parameter.grad = None


def _apply(
    optimizer: torch.optim.Optimizer, parameters: list[torch.nn.Parameter], every: int
) -> None:
    """Step with the mean of what was gathered; without, a parameter is left alone."""
    gathered = {}
    for parameter in parameters:
        state = optimizer.state.get(parameter, {})
        if state.get(COUNT):
            # Not while it steps: to most optimizers an empty state means that they begin.
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
    """The optimizer's group that a parameter is in, which it steps."""
    groups = optimizer.param_groups
    return next(each for each in groups if any(one is parameter for one in each["params"]))


def _momentum(options: Mapping[str, Any]) -> float:
    """How much of an update comes again in the next one, without a gradient."""
    return float(options["momentum"] if "momentum" in options else options.get("betas", (0.0,))[0])


def parameters_of(optimizer: torch.optim.Optimizer) -> Iterator[torch.nn.Parameter]:
    """All that it steps, group by group."""
    for group in optimizer.param_groups:
        yield from group["params"]
