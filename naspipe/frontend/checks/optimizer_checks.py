"""What is tried of an optimizer before anything is written: its name, options and real steps."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from naspipe.config.definition import Recipe
from naspipe.config.errors import ConfigError, reason
from naspipe.config.rules import RECIPES, OwnStep
from naspipe.config.user_code import users_code
from naspipe.frontend.checks.own_optimizers import REFUSED, check_own
from naspipe.mixed.alphas import Alpha
from naspipe.runtime.forking.fitness import done_fit
from naspipe.runtime.stepping.optimizers import (
    MEANINGLESS,
    OF_ALPHAS,
    PER_LAYER,
    is_own,
    make_optimizer,
    options_of,
    takes_any,
)


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
            check_steps = check_own if is_own(recipe.optimizer) else _check_steps
            done_fit(partial(check_steps, alone, own), what)


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
    if found := [option for option in options if option in OF_ALPHAS]:
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
        known = options_of(recipe.optimizer)
        raise ConfigError(
            f"optimizer {recipe.optimizer}: expected options such as its defaults "
            f"({', '.join(f'{key}={known[key].default}' for key in options) or 'none'}), found "
            f"{', '.join(f'{key}={value!r:.40}' for key, value in options.items()) or 'none'}: "
            f"{reason(error)}; change them with --set optimizer.OPTION=VALUE"
        ) from error
    return {}


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


def _take_steps(recipe: Recipe, own: OwnStep) -> None:
    """Two steps on vectors and a matrix: some options are first looked at there."""
    weights = (torch.nn.Parameter(torch.zeros(size)) for size in ((2,), (2, 2)))
    parameters = [*weights, Alpha(torch.zeros(2))]
    optimizer = make_optimizer(recipe, parameters, own)
    for _ in range(2):
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
