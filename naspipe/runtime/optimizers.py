"""Optimizers by name, one instance per layer, so that the state lives with its layer."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable

import torch

from naspipe.core.config import Recipe
from naspipe.core.errors import ConfigError

PER_LAYER = (
    "SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam",
    "ASGD", "Rprop", "Adafactor",
)  # fmt: skip
"""Elementwise or per-parameter: one optimizer per layer leaves the bits of one over all."""

REFUSED = {
    "LBFGS": "it needs a closure and one state over all parameters",
    "SparseAdam": "it takes sparse gradients only",
    "Muon": "it takes two-dimensional parameters only",
}


def check_optimizer(recipe: Recipe) -> None:
    """Check the name and the options before anything is written.

    Raises:
        ConfigError: for an unknown name, one that does not work per layer, or bad options.
    """
    name = recipe.optimizer
    if name in REFUSED:
        raise ConfigError(
            f"optimizer {name} does not work per layer: {REFUSED[name]}; "
            f"choose one of {', '.join(PER_LAYER)}"
        )
    if name not in PER_LAYER:
        close = difflib.get_close_matches(name, PER_LAYER, n=1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        raise ConfigError(f"unknown optimizer {name!r}{hint}: expected {', '.join(PER_LAYER)}")
    known = inspect.signature(getattr(torch.optim, name)).parameters
    for option in recipe.optimizer_options:
        if option not in known or option in ("params", "lr"):
            options = ", ".join(key for key in known if key not in ("params", "lr"))
            raise ConfigError(f"optimizer {name} has no option {option!r}: expected {options}")
    try:
        make_optimizer(recipe, [torch.nn.Parameter(torch.zeros(1))])
    except (TypeError, ValueError) as error:
        raise ConfigError(f"optimizer {name}: {error}") from None


def make_optimizer(
    recipe: Recipe, parameters: Iterable[torch.nn.Parameter]
) -> torch.optim.Optimizer:
    """One layer's optimizer; its rate is set before each step."""
    options = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in recipe.optimizer_options.items()
    }
    make = getattr(torch.optim, recipe.optimizer)
    optimizer: torch.optim.Optimizer = make(list(parameters), lr=recipe.lr, **options)
    return optimizer
