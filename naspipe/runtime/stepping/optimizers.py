"""Optimizers by name, one instance per layer, so that the state lives with its layer."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable
from types import FunctionType
from typing import Any

import torch

from naspipe.config.definition import Recipe
from naspipe.config.errors import ConfigError
from naspipe.config.rules import RECIPES, OwnStep
from naspipe.config.settings import GivenCode
from naspipe.config.user_code import import_attribute
from naspipe.mixed.alphas import Alpha, WithAlphas, alpha_optimizer
from naspipe.runtime.stepping.around_step import add_hooks
from naspipe.runtime.stepping.lars import LARS
from naspipe.runtime.stepping.own_steps import FACTOR, GROUP, with_momentum
from naspipe.runtime.stepping.parameter_names import GroupOf, no_groups

PER_LAYER = (
    "SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam",
    "ASGD", "Rprop", "Adafactor", "LARS",
)  # fmt: skip
"""Elementwise or per-parameter: one optimizer per layer leaves the bits of one over all."""

ENTRY_BY_ENTRY = (
    "SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam",
)  # fmt: skip
"""Those that step each entry of a parameter alone, and whose state begins as zero there."""

OWN: dict[str, type[torch.optim.Optimizer]] = {"LARS": LARS}
"""Those that torch does not have."""

BESIDE = ("ASGD",)
"""Those whose numbers without dimensions torch makes beside the parameter, not in host memory."""

MEANINGLESS = {
    "differentiable": "nothing is differentiated through a WRITE",
    "capturable": "no step is captured in a CUDA graph",
}

OF_ALPHAS = {
    name: option
    for name, option in inspect.signature(alpha_optimizer).parameters.items()
    if option.default is not inspect.Parameter.empty
}
"""Options of whatever optimizer, for layers with architecture parameters."""


def options_of(name: str) -> dict[str, inspect.Parameter]:
    """What a user may set of an optimizer, by name."""
    others = _arguments(name)
    known = {**{each.name: each for each in others[1:]}, **OF_ALPHAS}
    hidden = ("lr", *MEANINGLESS)
    return {option: known[option] for option in known if option not in hidden}


def takes_any(name: str) -> bool:
    """Whether an optimizer has further options, which only it knows."""
    return any(each.kind is inspect.Parameter.VAR_KEYWORD for each in _arguments(name))


def takes_rate(name: str) -> bool:
    """Whether it is made with ``lr``; otherwise it has one of its own, until its first step."""
    return takes_any(name) or any(each.name == "lr" for each in _arguments(name))


def is_own(name: str) -> bool:
    """Whether it is a user's own: code, or ``module:name``."""
    return isinstance(name, GivenCode) or ":" in name


def find_optimizer(name: str) -> Any:
    """What makes an optimizer.

    Raises:
        ConfigError: when a user's own cannot be found.
    """
    if isinstance(name, GivenCode):
        return name.code
    return import_attribute(name) if ":" in name else OWN.get(name) or getattr(torch.optim, name)


def _arguments(name: str) -> list[inspect.Parameter]:
    """Of what makes an optimizer: the parameters first, then its options."""
    make = find_optimizer(name)
    is_kept = isinstance(make, type | FunctionType)  # others may have no hash, or change
    return [*(_parameters if is_kept else _parameters.__wrapped__)(make)]


@functools.lru_cache(maxsize=32)
def _parameters(make: Any) -> tuple[inspect.Parameter, ...]:
    """Asked for with every layer that is made."""
    return tuple(inspect.signature(make).parameters.values())


def make_optimizer(
    recipe: Recipe, parameters: Iterable[torch.nn.Parameter], own: OwnStep = RECIPES,
    group_of: GroupOf = no_groups,
) -> torch.optim.Optimizer:  # fmt: skip
    """One layer's optimizer, for :func:`~naspipe.runtime.stepping.own_steps.take_step`.

    Its step clips and averages as the recipe says (:mod:`naspipe.runtime.stepping.around_step`).
    Architecture parameters have an optimizer of their own in it, at a constant rate.

    Args:
        recipe: names the optimizer, its options and groups.
        parameters: of one layer, in the order of its module.
        own: how the layer steps.
        group_of: the group of each of them.

    Raises:
        ConfigError: when the layer has a momentum of its own and the optimizer none.
    """
    options = _given_options(recipe, own)
    of_alphas: dict[str, Any] = {name: options.pop(name) for name in OF_ALPHAS if name in options}
    weights, alphas = _split(parameters)
    optimizer: torch.optim.Optimizer
    make = find_optimizer(recipe.optimizer)
    sets = _grouped(weights, group_of)
    given: Any = [
        {**_own_options(recipe, own, number), "params": those} for number, those in sets.items()
    ]
    rate = {"lr": recipe.lr} if takes_rate(recipe.optimizer) else {}
    optimizer = make(weights if weights and [*sets] == [0] else given, **rate, **options)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ConfigError(
            f"optimizer {recipe.optimizer}: expected a function that returns a "
            f"torch.optim.Optimizer, found it to return a {type(optimizer).__name__}"
        )
    _tag(optimizer, recipe, list(sets))
    if recipe.optimizer in BESIDE:
        optimizer.register_step_pre_hook(_put_beside)
    if alphas:
        optimizer = WithAlphas(optimizer, alpha_optimizer(alphas, **of_alphas))
    add_hooks(optimizer, recipe, [*weights, *alphas])
    return optimizer


def _tag(optimizer: torch.optim.Optimizer, recipe: Recipe, numbers: list[int]) -> None:
    """Note in each group of weights which parameter group it is; one may be made into several."""
    groups = optimizer.param_groups
    if len(numbers) == 1:
        numbers = numbers * len(groups)
    if len(groups) != len(numbers):
        raise ConfigError(
            f"optimizer {recipe.optimizer}: expected it to keep the {len(numbers)} groups that "
            f"parameter_groups make of a layer, found it to make {len(groups)}; choose one way"
        )
    for number, group in zip(numbers, groups, strict=True):
        factor = recipe.groups[number - 1].lr_factor if number else 1.0
        group |= {GROUP: number, FACTOR: factor}


def _given_options(recipe: Recipe, own: OwnStep) -> dict[str, Any]:
    """The keyword arguments of a layer's optimizer."""
    known = options_of(recipe.optimizer)
    recipe = with_momentum(recipe, own, {name: each.default for name, each in known.items()})
    return {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in recipe.optimizer_options.items()
    }


def _own_options(recipe: Recipe, own: OwnStep, number: int) -> dict[str, Any]:
    """What the parameters of one group have in the place of the optimizer's own arguments."""
    if not number:
        return {}
    options = _given_options(recipe.of_group(number), own)
    return {name: value for name, value in options.items() if name not in OF_ALPHAS}


def _grouped(
    weights: list[torch.nn.Parameter], group_of: GroupOf
) -> dict[int, list[torch.nn.Parameter]]:
    """Weights by the numbers of their groups, the rest first; at least one list, if it is empty."""
    found: dict[int, list[torch.nn.Parameter]] = {}
    for each in weights:
        found.setdefault(group_of(each), []).append(each)
    return dict(sorted(found.items())) or {0: []}


def _put_beside(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """What came from a checkpoint or another stage is in host memory; its step would be another."""
    own = (parameter for group in optimizer.param_groups for parameter in group["params"])
    for parameter in own:  # not all of the state: beside alphas it is that of two optimizers
        state = optimizer.state.get(parameter, {})
        for name, value in state.items():
            state[name] = value.to(parameter.device) if torch.is_tensor(value) else value


def _split(
    parameters: Iterable[torch.nn.Parameter],
) -> tuple[list[torch.nn.Parameter], list[torch.nn.Parameter]]:
    """Weights, and architecture parameters."""
    found = list(parameters)
    alphas: list[torch.nn.Parameter] = [each for each in found if isinstance(each, Alpha)]
    return [each for each in found if not isinstance(each, Alpha)], alphas
