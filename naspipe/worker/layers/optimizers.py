"""Optimizers by name, with one instance per layer so that the state moves with its layer."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from types import FunctionType
from typing import Any

import torch
from torch import nn

from naspipe.config.errors import ConfigError
from naspipe.config.recipe import NamedParameter, ParameterGroup, Recipe, group_of
from naspipe.config.rules import RECIPES, OwnStep
from naspipe.config.settings import GivenCode
from naspipe.config.user_code import import_attribute
from naspipe.machine.device_waits import Wait, on_host
from naspipe.mixed.architecture import Alpha, WithAlphas, alpha_optimizer
from naspipe.worker.layers.own_steps import (
    FACTOR,
    GROUP,
    add_hooks,
    parameters_of,
    with_momentum,
)


class LARS(torch.optim.Optimizer):
    """SGD whose rate for each parameter follows the norms of it and of its gradient::

        scale = trust * |w| / (|g| + weight_decay * |w|)
        v = momentum * v + lr * scale * (g + weight_decay * w)
        w = w - v

    This is algorithm 1 of the LARS paper. Parameters with fewer than two dimensions (biases and
    norms) have no decay and no scale, as in BYOL and SimCLR (Grill et al. 2020, section 3.3). The
    scale is 1 if the norm of a parameter or its gradient is 0. ``trust`` limits the size of a step
    relative to the norm of the parameter.
    """

    def __init__(
        self,
        params: Iterable[torch.nn.Parameter],
        lr: float = 0.1,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust: float = 0.001,
    ) -> None:
        if min(lr, momentum, weight_decay, trust) < 0:
            raise ValueError("expected numbers of 0 or more")
        usual = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust}
        super().__init__(params, usual)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                gradient, scale = parameter.grad, 1.0
                if gradient is None:
                    continue
                if parameter.dim() > 1:
                    decay = group["weight_decay"]
                    norm = float(on_host(parameter.norm(), Wait.TRUST))
                    of_gradient = float(on_host(gradient.norm(), Wait.TRUST))
                    if norm > 0 and of_gradient > 0:
                        scale = group["trust"] * norm / (of_gradient + decay * norm)
                    gradient = gradient.add(parameter, alpha=decay)
                state = self.state[parameter]
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(parameter)
                velocity = state["momentum_buffer"]
                velocity.mul_(group["momentum"]).add_(gradient, alpha=group["lr"] * scale)
                parameter.sub_(velocity)


GroupOf = Callable[[nn.Parameter], int]
"""Returns the number of a parameter's group; 0 for parameters without a group."""


def no_groups(parameter: nn.Parameter) -> int:
    return 0


def grouping(label: str, module: nn.Module, groups: Sequence[ParameterGroup]) -> GroupOf:
    """Return a function that maps parameters of a layer such as ``3.1`` or ``head`` to groups."""
    if not groups:
        return no_groups
    named = named_parameters(label, module)
    numbers = {key: group_of(each, groups) for key, each in named.items()}
    return lambda parameter: numbers[id(parameter)]


def named_parameters(label: str, module: nn.Module) -> dict[int, NamedParameter]:
    """Return the parameters of a layer except architecture parameters, by ``id``.

    A parameter that occurs twice has the first of its names.
    """
    found: dict[int, NamedParameter] = {}
    for prefix, owner in module.named_modules():
        for key, parameter in owner._parameters.items():
            if parameter is not None and not isinstance(parameter, Alpha):
                name = ".".join(part for part in (label, prefix, key) if part)
                described = NamedParameter(name, parameter.dim(), type(owner).__name__)
                found.setdefault(id(parameter), described)
    return found


PER_LAYER = (
    "SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam",
    "ASGD", "Rprop", "Adafactor", "LARS",
)  # fmt: skip
"""Elementwise or per-parameter optimizers: one per layer is bitwise equal to one for all layers."""

ENTRY_BY_ENTRY = (
    "SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam",
)  # fmt: skip
"""Optimizers that step each entry independently and whose initial state is zero."""

OWN: dict[str, type[torch.optim.Optimizer]] = {"LARS": LARS}
"""Optimizers that are not part of torch."""

BESIDE = ("ASGD",)
"""Optimizers whose scalar state torch keeps on the parameter's device, not in host memory."""

MEANINGLESS = {
    "differentiable": "nothing is differentiated through a WRITE",
    "capturable": "no step is captured in a CUDA graph",
}

OF_ALPHAS = {
    name: option
    for name, option in inspect.signature(alpha_optimizer).parameters.items()
    if option.default is not inspect.Parameter.empty
}
"""Options of any optimizer, for layers with architecture parameters."""


def options_of(name: str) -> dict[str, inspect.Parameter]:
    others = _arguments(name)
    known = {**{each.name: each for each in others[1:]}, **OF_ALPHAS}
    hidden = ("lr", *MEANINGLESS)
    return {option: known[option] for option in known if option not in hidden}


def takes_any(name: str) -> bool:
    """Return True if an optimizer accepts arbitrary keyword arguments."""
    return any(each.kind is inspect.Parameter.VAR_KEYWORD for each in _arguments(name))


def takes_rate(name: str) -> bool:
    """Return True if an optimizer takes ``lr``; else it has its own rate until its first step."""
    return takes_any(name) or any(each.name == "lr" for each in _arguments(name))


def is_own(name: str) -> bool:
    return isinstance(name, GivenCode) or ":" in name


def find_optimizer(name: str) -> Any:
    if isinstance(name, GivenCode):
        return name.code
    return import_attribute(name) if ":" in name else OWN.get(name) or getattr(torch.optim, name)


def _arguments(name: str) -> list[inspect.Parameter]:
    """Return the arguments of an optimizer: first the parameters, then its options."""
    make = find_optimizer(name)
    is_kept = isinstance(make, type | FunctionType)  # others may be unhashable or mutable
    return [*(_parameters if is_kept else _parameters.__wrapped__)(make)]


@functools.lru_cache(maxsize=32)
def _parameters(make: Any) -> tuple[inspect.Parameter, ...]:
    return tuple(inspect.signature(make).parameters.values())


def make_optimizer(
    recipe: Recipe,
    parameters: Iterable[torch.nn.Parameter],
    own: OwnStep = RECIPES,
    group_of: GroupOf = no_groups,
) -> torch.optim.Optimizer:
    """Create one layer's optimizer, for :func:`~naspipe.worker.layers.own_steps.take_step`.

    Its step clips and averages as the recipe specifies (:mod:`naspipe.worker.layers.own_steps`).
    Architecture parameters have a separate inner optimizer with a constant rate.

    Args:
        recipe: specifies the optimizer, its options and groups.
        parameters: the parameters of one layer, in the order of its module.
        own: how the layer steps.
        group_of: returns the group of each parameter.
    """
    given = list(parameters)
    weights = [each for each in given if not isinstance(each, Alpha)]
    alphas: list[torch.nn.Parameter] = [each for each in given if isinstance(each, Alpha)]
    options = _given_options(recipe, own)
    of_alphas: dict[str, Any] = {name: options.pop(name) for name in OF_ALPHAS if name in options}
    # Weights by the numbers of their groups, starting with 0; at least one list, maybe empty.
    sets: dict[int, list[torch.nn.Parameter]] = {}
    for each in weights:
        sets.setdefault(group_of(each), []).append(each)
    sets = dict(sorted(sets.items())) or {0: []}
    groups: list[dict[str, Any]] = []
    for number, those in sets.items():
        instead = _given_options(recipe.of_group(number), own) if number else {}
        kept = {name: value for name, value in instead.items() if name not in OF_ALPHAS}
        groups.append({**kept, "params": those})
    rate = {"lr": recipe.lr} if takes_rate(recipe.optimizer) else {}
    make, is_plain = find_optimizer(recipe.optimizer), bool(weights) and [*sets] == [0]
    optimizer: torch.optim.Optimizer = make(weights if is_plain else groups, **rate, **options)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ConfigError(
            f"optimizer {recipe.optimizer}: expected a function that returns a "
            f"torch.optim.Optimizer, found it to return a {type(optimizer).__name__}"
        )
    # Record the parameter group in each group, because the optimizer may split one into several.
    numbers, made = list(sets), optimizer.param_groups
    if len(numbers) == 1:
        numbers = numbers * len(made)
    if len(made) != len(numbers):
        raise ConfigError(
            f"optimizer {recipe.optimizer}: expected it to keep the {len(numbers)} groups that "
            f"parameter_groups make of a layer, found it to make {len(made)}; choose one way"
        )
    for number, group in zip(numbers, made, strict=True):
        factor = recipe.groups[number - 1].lr_factor if number else 1.0
        group |= {GROUP: number, FACTOR: factor}
    if recipe.optimizer in BESIDE:
        optimizer.register_step_pre_hook(_put_beside)
    if alphas:
        optimizer = WithAlphas(optimizer, alpha_optimizer(alphas, **of_alphas))
    add_hooks(optimizer, recipe, [*weights, *alphas])
    return optimizer


def _given_options(recipe: Recipe, own: OwnStep) -> dict[str, Any]:
    known = options_of(recipe.optimizer)
    recipe = with_momentum(recipe, own, {name: each.default for name, each in known.items()})
    return {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in recipe.optimizer_options.items()
    }


def _put_beside(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Move state received from a checkpoint or another stage from host memory to the device."""
    # Only this optimizer's part: with alphas, the state is that of two optimizers.
    for parameter in parameters_of(optimizer):
        state = optimizer.state.get(parameter, {})
        for name, value in state.items():
            state[name] = value.to(parameter.device) if torch.is_tensor(value) else value
