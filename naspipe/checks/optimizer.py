"""Check an optimizer before anything is written: its name, its options, and some steps with it.

Every layer has its own optimizer. A user's optimizer is therefore stepped on a few small
parameters, together and separately: the plain loop, which also has one optimizer per layer, cannot
detect that it mixes parameters, ignores the learning rate, or keeps state that does not move with a
layer.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from naspipe.config.errors import ConfigError, reason
from naspipe.config.recipe import Recipe
from naspipe.config.rules import RECIPES, OwnStep
from naspipe.config.user_code import users_code
from naspipe.machine.forking import done_fit
from naspipe.mixed.architecture import Alpha
from naspipe.worker.layers.optimizers import (
    MEANINGLESS,
    OF_ALPHAS,
    PER_LAYER,
    is_own,
    make_optimizer,
    options_of,
    takes_any,
)
from naspipe.worker.layers.own_steps import is_moved

REFUSED = {
    "LBFGS": "it needs a closure and one state over all parameters",
    "SparseAdam": "it takes sparse gradients only",
    "Muon": "it takes two-dimensional parameters only",
}
"""Optimizers of torch that do not work per layer, with the reason."""

_SIZES = ((3,), (4, 3), (2, 4, 3))
_STEPS = 5
_WITHOUT = 1
"""Number of the step in which the last parameter has no gradient."""

_Make = Callable[[Sequence[torch.nn.Parameter]], torch.optim.Optimizer]


def check_optimizer(recipe: Recipe, own: OwnStep = RECIPES) -> None:
    """Check the name and options of an optimizer, and take some steps with it."""
    name = recipe.optimizer
    _check_name(name)
    _check_options(recipe)
    importlib.import_module("torch._dynamo")  # the first step imports it: once here, not per fork
    check_steps = _check_own if is_own(name) else _check_steps
    for number in range(len(recipe.groups) + 1):
        try:
            options = recipe.groups[number - 1].options if number else {}
            if found := [option for option in options if option in OF_ALPHAS]:
                raise ConfigError(
                    f"expected options of weights, found {found[0]}: architecture parameters are "
                    f"in no group; use --set optimizer.{found[0]}"
                )
            _check_options(recipe.of_group(number))
            alone = replace(recipe.of_group(number), parameter_groups=())
            done_fit(partial(check_steps, alone, own), f"the check of the optimizer {name}")
        except ConfigError as error:
            where = f"parameter_groups[{number - 1}]: " if number else ""
            raise ConfigError(f"{where}{error}") from error


def _check_name(name: str) -> None:
    if is_own(name):
        return
    if name in REFUSED:
        raise ConfigError(
            f"optimizer {name} does not work per layer: {REFUSED[name]}; "
            f"choose one of {', '.join(PER_LAYER)}"
        )
    if name not in PER_LAYER:
        by_lower_case = {known.lower(): known for known in PER_LAYER}
        close = difflib.get_close_matches(name.lower(), by_lower_case, n=1)
        hint = f" (did you mean {by_lower_case[close[0]]}?)" if close else ""
        raise ConfigError(
            f"unknown optimizer {name!r:.80}{hint}: expected {', '.join(PER_LAYER)}, "
            f"or your own as module:name"
        )


def _check_options(recipe: Recipe) -> None:
    name = recipe.optimizer
    with users_code(f"optimizer {name}: expected what makes a torch.optim.Optimizer, found"):
        known = options_of(name)
    for option, value in recipe.optimizer_options.items():
        if option in MEANINGLESS:
            raise ConfigError(
                f"optimizer option {option}={value!r:.40} has no meaning here: "
                f"{MEANINGLESS[option]}; leave it out"
            )
        if takes_any(name):
            continue
        if option not in known:
            own = [each for each in known if each not in OF_ALPHAS]
            raise ConfigError(
                f"optimizer {name} has no option {option!r:.80}: expected "
                f"{', '.join(own) or 'none'}, or of architecture parameters {', '.join(OF_ALPHAS)}"
            )
        default = known[option].default
        is_switch = isinstance(default, bool) or (default is None and not is_own(name))
        if is_switch and value is not default and not isinstance(value, bool):
            raise ConfigError(
                f"optimizer {name}, option {option}: expected true or false, found {value!r:.80}"
            )


def _check_steps(recipe: Recipe, own: OwnStep) -> dict[str, Any]:
    """Take two steps with a torch optimizer, because some options are first used in a step."""
    try:
        weights = (torch.nn.Parameter(torch.zeros(size)) for size in ((2,), (2, 2)))
        parameters = [*weights, Alpha(torch.zeros(2))]
        optimizer = make_optimizer(recipe, parameters, own)
        for _ in range(2):
            for parameter in parameters:
                parameter.grad = torch.ones_like(parameter)
            optimizer.step()
    except ConfigError:
        raise
    except Exception as error:
        options = recipe.optimizer_options
        known = options_of(recipe.optimizer)
        raise ConfigError(
            f"optimizer {recipe.optimizer}: expected options such as its defaults "
            f"({', '.join(f'{key}={known[key].default}' for key in options) or 'none'}), found "
            f"{', '.join(f'{key}={value!r:.40}' for key, value in options.items()) or 'none'}: "
            f"{reason(error)}; change them with --set optimizer.OPTION=VALUE"
        ) from error
    return {}


def _check_own(recipe: Recipe, own: OwnStep) -> dict[str, Any]:
    """Take some steps with a user's optimizer on a few small parameters."""
    name = recipe.optimizer
    bare = replace(recipe, clip_layer_norm=0.0, ema=0.0)
    make = partial(make_optimizer, bare, own=own)
    with users_code(f"optimizer {name}: expected to be called with parameters and options, found"):
        found = _why_not_this(_Trial(make).optimizers[0])
    if not found:
        with users_code(f"optimizer {name}: expected steps without a closure, found"):
            found = _why_not_its_steps(make) or _why_not_its_rate(make)
    if found:
        raise ConfigError(f"optimizer {name} does not work per layer: {found}")
    return {}


class _Trial:
    """Parameters that one optimizer steps together, or that have one optimizer each."""

    def __init__(self, make: _Make, is_apart: bool = False) -> None:
        draw = torch.Generator().manual_seed(1)
        self.parameters = [torch.nn.Parameter(torch.randn(size, generator=draw)) for size in _SIZES]
        sets = [[each] for each in self.parameters] if is_apart else [self.parameters]
        self.optimizers = [make(each) for each in sets]

    def step(self, number: int) -> None:
        draw = torch.Generator().manual_seed(2 + number)
        for parameter in self.parameters:
            parameter.grad = torch.randn(parameter.shape, generator=draw)
        if number == _WITHOUT:
            self.parameters[-1].grad = None
        for optimizer in self.optimizers:
            optimizer.step()

    def heir(self, make: _Make) -> _Trial:
        """Copy values and states to a new optimizer, as on another stage or after a resume."""
        made = _Trial(make)
        with torch.no_grad():
            for own, parameter in zip(made.parameters, self.parameters, strict=True):
                own.copy_(parameter)
                for key, value in self.optimizers[0].state[parameter].items():
                    copied = value.clone() if isinstance(value, torch.Tensor) else value
                    made.optimizers[0].state[own][key] = copied
        return made

    def states(self) -> list[dict[Any, Any]]:
        """Return the state of each parameter, if they are stepped together."""
        return [self.optimizers[0].state.get(each, {}) for each in self.parameters]

    def ends_as(self, other: _Trial) -> bool:
        """Return True if all parameters have the same values."""
        return all(map(torch.equal, self.parameters, other.parameters))


def _why_not_this(optimizer: torch.optim.Optimizer) -> str:
    for refused, why in REFUSED.items():
        if isinstance(optimizer, getattr(torch.optim, refused)):
            return why
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        return "its step needs a closure; choose one that needs gradients alone"
    rates = {group.get("lr") for group in optimizer.param_groups}
    if len(rates) > 1 or None in rates:
        return (
            f"every step sets the lr of its groups to one rate, found "
            f"{', '.join(sorted(map(str, rates)))}; use parameter_groups and lr_factor"
        )
    count = sum(len(group["params"]) for group in optimizer.param_groups)
    if count != len(_SIZES):
        return (
            f"it steps {count} of {len(_SIZES)} parameters that it is made with; for layers that "
            f"are not to be trained use the rule frozen"
        )
    return ""


def _why_not_its_steps(make: _Make) -> str:
    together, apart = _Trial(make), _Trial(make, is_apart=True)
    forms: list[dict[Any, object]] = []
    for number in range(_STEPS):
        heir = together.heir(make)
        before = together.parameters[-1].detach().clone()
        for each in (together, apart, heir):
            each.step(number)
        if number == _WITHOUT and not torch.equal(before, together.parameters[-1]):
            return "it changes parameters without a gradient; skip those whose grad is None"
        if not together.ends_as(apart):
            return "what it does to one parameter depends on others, which other stages may have"
        if not together.ends_as(heir):
            return (
                "it keeps something besides the state of each parameter, as in self or a group, "
                "which does not go with a layer; keep it in self.state[parameter]"
            )
        states = together.states()
        for key, value in (pair for state in states for pair in state.items()):
            if not isinstance(key, str) or not isinstance(value, torch.Tensor | int | float):
                kept = f"{key} of type {type(value).__name__}"
                return f"it keeps {kept}; keep tensors and numbers, under names"
        now = [{k: v.shape for k, v in state.items() if is_moved(v)} for state in states]
        forms = forms or now
        if now != forms:
            return "what it keeps of a parameter grows after the first step; make it all at once"
    return ""


def _why_not_its_rate(make: _Make) -> str:
    trials = [_Trial(make), _Trial(make)]
    for trial, rate in zip(trials, (0.5, 0.25), strict=True):
        for group in trial.optimizers[0].param_groups:
            group["lr"] = rate
        trial.step(0)
    if trials[0].ends_as(trials[1]):
        return "its steps do not heed the lr of its groups, which every step sets"
    return ""
