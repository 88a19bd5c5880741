"""A recipe, of a file or a mapping and of what the arguments of ``naspipe.train`` say beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from naspipe.config.definition import Recipe, Settings
from naspipe.config.errors import ConfigError
from naspipe.config.recipe import schedule_of, table_text
from naspipe.config.recipe_file import NO_RECIPE, RecipeFile, read_recipe
from naspipe.config.settings import GivenCode
from naspipe.config.text import did_you_mean
from naspipe.config.user_code import users_code
from naspipe.frontend.given.keywords import Stated
from naspipe.runtime.stepping.optimizers import PER_LAYER

Optimizer = str | Callable[..., torch.optim.Optimizer]
"""By name, or a class or function that is called with parameters and returns one."""


Rate = float | Callable[[int], float] | Mapping[int, float]
"""The peak of a schedule; or a function from a step to its rate, or rates by their first steps."""


def read_file(recipe: str | Path | Mapping[str, Any] | None) -> tuple[RecipeFile, Settings]:
    """A recipe file, where one is meant, and the settings that it gives."""
    file = read_recipe(recipe) if isinstance(recipe, str | Path) else NO_RECIPE
    return file, file.applied_to(Settings())


def given_recipe(recipe: str | Path | Mapping[str, Any] | None, said: Stated, steps: int) -> Recipe:
    """The recipe; what ``said`` says goes before what a file or a mapping says.

    Another optimizer than the recipe's has options of its own. ``steps`` are those of the run, for
    each of which a function of the rate is asked.

    Raises:
        ConfigError: for what cannot be used.
    """
    file, settings = read_file(recipe)
    base = settings.recipe
    before = {
        "optimizer": base.optimizer, "optimizer_options": base.optimizer_options,
        **_further(recipe),
    }  # fmt: skip
    fields = {**before, **said.recipe}
    fields["optimizer"] = _named(fields["optimizer"])
    if fields["optimizer"] != _named(before["optimizer"]):
        fields["optimizer_options"] = said.recipe.get("optimizer_options", {})
    options = fields["optimizer_options"]
    if not isinstance(options, Mapping):
        raise ConfigError(
            f"optimizer_options: expected a mapping, as in {{'momentum': 0.9}}, found "
            f"{type(options).__name__}"
        )
    fields["optimizer_options"] = {**options, **said.options}
    _check_schedule(fields.get("schedule", ""), "schedule")
    says_rate = "lr" in fields or "lr" in file.values
    for given in (said.recipe, _further(recipe)):
        _check_one_schedule(given)
    if "lr" in fields:
        fields.update(_rated(fields["lr"], steps))
    made = replace(base, **fields)
    if "warmup_steps" in fields:
        made.check_warmup(steps)
    return made if says_rate else replace(made, lr=_own_rate(made))


def _rated(rate: Any, steps: int) -> dict[str, Any]:
    """The settings that stand for a rate; one by step is a schedule that multiplies 1."""
    _check_schedule(rate, "lr")
    if isinstance(rate, Mapping):
        return {"lr": 1.0, "schedule": table_text(rate)}
    if callable(rate):
        with users_code("lr: expected a function from a step to its rate, found"):
            return {"lr": 1.0, "schedule": schedule_of(rate, steps)}
    return {"lr": rate}


def _check_schedule(given: Any, what: str) -> None:
    """Raises ConfigError for a scheduler of torch's, and a function in the place of a name."""
    kind = given if isinstance(given, type) else type(given)
    todo = "write schedule='cosine' or another name, or lr=FUNCTION, which returns a step's rate"
    if issubclass(kind, torch.optim.lr_scheduler.LRScheduler):
        raise ConfigError(
            f"{what}: expected no scheduler of torch's, which belongs to one optimizer of a whole "
            f"network, found {kind.__name__}; {todo}"
        )
    if what == "schedule" and callable(given):
        raise ConfigError(f"{what}: expected a name, as in 'cosine', found a function; {todo}")


def _check_one_schedule(given: Mapping[str, Any]) -> None:
    """Raises ConfigError for rates by step beside a schedule, which says them, too."""
    rate, schedule = given.get("lr"), given.get("schedule")
    if schedule is not None and (callable(rate) or isinstance(rate, Mapping)):
        kind = "a function" if callable(rate) else "a table"
        raise ConfigError(
            f"lr: expected a number beside schedule={schedule!r:.40}, which says how the rate "
            f"follows the step, found {kind}, which does, too; leave one of them out"
        )


def _own_rate(recipe: Recipe) -> float:
    """What a user's own optimizer has for a rate where nothing is said; the recipe's otherwise."""
    if isinstance(recipe.optimizer, GivenCode):
        with suppress(Exception):  # whatever is wrong with it is said by its check
            made = recipe.optimizer.code(
                [torch.nn.Parameter(torch.zeros(1))], **recipe.optimizer_options
            )
            return float(made.param_groups[0]["lr"])
    return recipe.lr


def _named(optimizer: Any) -> Any:
    """What the recipe calls an optimizer; torch's own go by their names."""
    if isinstance(optimizer, str):
        return optimizer
    kind = type(optimizer).__name__
    if isinstance(optimizer, torch.optim.Optimizer):
        raise ConfigError(
            f"optimizer: expected its class, as every layer has one of its own, found the "
            f"{kind} of a whole network; give optimizer={kind}, lr=... and optimizer_options="
        )
    if not callable(optimizer):
        raise ConfigError(
            f"optimizer: expected a name, a class or a function that makes one, found {kind} "
            f"{optimizer!r:.40}"
        )
    name = getattr(optimizer, "__name__", "")
    is_torchs = name in PER_LAYER and getattr(torch.optim, name, None) is optimizer
    return name if is_torchs else GivenCode(optimizer)


def _further(recipe: str | Path | Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The fields that a caller gives in place of a file."""
    further = {} if isinstance(recipe, str | Path) else recipe or {}
    known = Recipe.__dataclass_fields__
    if not isinstance(further, Mapping) or (wrong := sorted(map(str, set(further) - set(known)))):
        found = (
            f"{type(further).__name__}"
            if not isinstance(further, Mapping)
            else f"{wrong}{did_you_mean(wrong[0], known)}"
        )
        raise ConfigError(
            f"recipe: expected a file or a mapping of {', '.join(known)}, found {found:.120}"
        )
    return further
