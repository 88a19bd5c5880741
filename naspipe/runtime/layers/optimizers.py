"""Optimizers by name, one instance per layer, so that the state lives with its layer."""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from naspipe.core.config import Recipe
from naspipe.core.errors import ConfigError, reason
from naspipe.core.rules import RECIPES, OwnStep
from naspipe.mixed.alphas import Alpha, WithAlphas, alpha_optimizer
from naspipe.runtime.forking.fitness import done_fit
from naspipe.runtime.layers.around_step import add_hooks
from naspipe.runtime.layers.lars import LARS
from naspipe.runtime.layers.own_steps import FACTOR, GROUP, with_momentum
from naspipe.runtime.layers.parameter_names import GroupOf, no_groups

PER_LAYER = (
    "SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam",
    "ASGD", "Rprop", "Adafactor", "LARS",
)  # fmt: skip
"""Elementwise or per-parameter: one optimizer per layer leaves the bits of one over all."""

OWN: dict[str, type[torch.optim.Optimizer]] = {"LARS": LARS}
"""Those that torch does not have."""

BESIDE = ("ASGD",)
"""Those whose numbers without dimensions torch makes beside the parameter, not in host memory."""

REFUSED = {
    "LBFGS": "it needs a closure and one state over all parameters",
    "SparseAdam": "it takes sparse gradients only",
    "Muon": "it takes two-dimensional parameters only",
}


MEANINGLESS = {
    "differentiable": "nothing is differentiated through a WRITE",
    "capturable": "no step is captured in a CUDA graph",
}


_OF_ALPHAS = {
    name: option
    for name, option in inspect.signature(alpha_optimizer).parameters.items()
    if option.default is not inspect.Parameter.empty
}
"""Options of whatever optimizer, for layers with architecture parameters."""


def check_optimizer(recipe: Recipe, own: OwnStep = RECIPES) -> None:
    """Check the name and the options, with real steps, before anything is written.

    With the momentum of one layer, where it has its own.

    Raises:
        ConfigError: for an unknown name, one that does not work per layer, or bad options.
    """
    _check_name(recipe.optimizer)
    _check_options(recipe)
    importlib.import_module("torch._dynamo")  # as the first step does: once here, not in each fork
    what = f"the check of the optimizer {recipe.optimizer}"
    for number in range(len(recipe.groups) + 1):
        with _about_group(number):
            _check_group(recipe, number)
            alone = replace(recipe.of_group(number), parameter_groups=())
            done_fit(partial(_check_steps, alone, own), what)


@contextmanager
def _about_group(number: int) -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        where = f"parameter_groups[{number - 1}]: " if number else ""
        raise ConfigError(f"{where}{error}") from error


def _check_group(recipe: Recipe, number: int) -> None:
    """What a group says of its own must be what one group of a torch optimizer may say."""
    options = recipe.groups[number - 1].options if number else {}
    if found := [option for option in options if option in _OF_ALPHAS]:
        raise ConfigError(
            f"expected options of weights, found {found[0]}: architecture parameters are in no "
            f"group; use --set optimizer.{found[0]}"
        )
    _check_options(recipe.of_group(number))


def _check_steps(recipe: Recipe, own: OwnStep) -> dict[str, Any]:
    try:
        _take_steps(recipe, own)
    except ConfigError:
        raise
    except Exception as error:
        options = recipe.optimizer_options
        known = _options(recipe.optimizer)
        raise ConfigError(
            f"optimizer {recipe.optimizer}: expected options such as its defaults "
            f"({', '.join(f'{key}={known[key].default}' for key in options) or 'none'}), found "
            f"{', '.join(f'{key}={value!r:.40}' for key, value in options.items()) or 'none'}: "
            f"{reason(error)}; change them with --set optimizer.OPTION=VALUE"
        ) from error
    return {}


def _check_name(name: str) -> None:
    if name in REFUSED:
        raise ConfigError(
            f"optimizer {name} does not work per layer: {REFUSED[name]}; "
            f"choose one of {', '.join(PER_LAYER)}"
        )
    if name not in PER_LAYER:
        by_lower_case = {known.lower(): known for known in PER_LAYER}
        close = difflib.get_close_matches(name.lower(), by_lower_case, n=1)
        hint = f" (did you mean {by_lower_case[close[0]]}?)" if close else ""
        raise ConfigError(f"unknown optimizer {name!r:.80}{hint}: expected {', '.join(PER_LAYER)}")


def _check_options(recipe: Recipe) -> None:
    name, known = recipe.optimizer, _options(recipe.optimizer)
    for option, value in recipe.optimizer_options.items():
        if option in MEANINGLESS:
            raise ConfigError(
                f"optimizer option {option}={value!r:.40} has no meaning here: "
                f"{MEANINGLESS[option]}; leave it out"
            )
        if option not in known:
            raise ConfigError(
                f"optimizer {name} has no option {option!r:.80}: expected {', '.join(known)}"
            )
        default = known[option].default
        is_switch = default is None or isinstance(default, bool)
        if is_switch and value is not default and not isinstance(value, bool):
            raise ConfigError(
                f"optimizer {name}, option {option}: expected true or false, found {value!r:.80}"
            )


def _options(name: str) -> dict[str, inspect.Parameter]:
    """What a user may set of an optimizer, by name."""
    known = {**inspect.signature(_find(name)).parameters, **_OF_ALPHAS}
    hidden = ("params", "lr", *MEANINGLESS)
    return {option: known[option] for option in known if option not in hidden}


def _find(name: str) -> Any:
    """An optimizer's class."""
    return OWN.get(name) or getattr(torch.optim, name)


def _take_steps(recipe: Recipe, own: OwnStep) -> None:
    """Two steps on vectors and a matrix: some options are first looked at there."""
    weights = (torch.nn.Parameter(torch.zeros(size)) for size in ((2,), (2, 2)))
    parameters = [*weights, Alpha(torch.zeros(2))]
    optimizer = make_optimizer(recipe, parameters, own)
    for _ in range(2):
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()


def make_optimizer(
    recipe: Recipe, parameters: Iterable[torch.nn.Parameter], own: OwnStep = RECIPES,
    group_of: GroupOf = no_groups,
) -> torch.optim.Optimizer:  # fmt: skip
    """One layer's optimizer, for :func:`~naspipe.runtime.layers.own_steps.take_step`.

    Its step clips and averages as the recipe says (:mod:`naspipe.runtime.layers.around_step`).
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
    of_alphas: dict[str, Any] = {name: options.pop(name) for name in _OF_ALPHAS if name in options}
    weights, alphas = _split(parameters)
    optimizer: torch.optim.Optimizer
    make = _find(recipe.optimizer)
    sets = _grouped(weights, group_of)
    given = [
        {**_own_options(recipe, own, number), "params": those} for number, those in sets.items()
    ]
    optimizer = make(given, lr=recipe.lr, **options)
    for number, group in zip(sets, optimizer.param_groups, strict=True):
        factor = recipe.groups[number - 1].lr_factor if number else 1.0
        group |= {GROUP: number, FACTOR: factor}
    if recipe.optimizer in BESIDE:
        optimizer.register_step_pre_hook(_put_beside)
    if alphas:
        optimizer = WithAlphas(optimizer, alpha_optimizer(alphas, **of_alphas))
    add_hooks(optimizer, recipe, [*weights, *alphas])
    return optimizer


def _given_options(recipe: Recipe, own: OwnStep) -> dict[str, Any]:
    """The keyword arguments of a layer's optimizer."""
    known = _options(recipe.optimizer)
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
    return {name: value for name, value in options.items() if name not in _OF_ALPHAS}


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
