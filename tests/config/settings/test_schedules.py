"""Warm restarts, tables and functions of the rate: by hand, and as torch has them."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts, MultiStepLR

from naspipe.config.definition import Definition, Settings, apply_settings
from naspipe.config.errors import ConfigError
from naspipe.config.recipe import Recipe, learning_rate, schedule_of, table_text
from naspipe.config.recipe_file import read_recipe


def rates_of(recipe: Recipe, steps: int) -> list[float]:
    return [learning_rate(recipe, step, steps) for step in range(steps)]


def torchs(scheduler: Any, lr: float, steps: int, **options: Any) -> list[float]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr)
    follows, found = scheduler(optimizer, **options), []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        follows.step()
    return found


@given(st.floats(1e-6, 10), st.integers(1, 9), st.integers(1, 3))
def test_restarts_have_the_bits_of_torchs(lr: float, first: int, growth: int) -> None:
    recipe = Recipe(lr=lr, schedule="cosine", restart_steps=first, restart_factor=growth)
    expected = torchs(CosineAnnealingWarmRestarts, lr, 40, T_0=first, T_mult=growth)
    assert rates_of(recipe, 40) == expected


def test_restarts_by_hand() -> None:
    linear = Recipe(lr=8.0, schedule="linear", restart_steps=2, restart_factor=2, warmup_steps=2)
    assert rates_of(linear, 10) == [4.0, 8.0, 8.0, 4.0, 8.0, 6.0, 4.0, 2.0, 8.0, 7.0]


def test_a_table_is_torchs_multi_step() -> None:
    text = table_text({100: 0.01, 0: 0.1, 30: 0.03})
    assert text == "table(0:0.1,30:0.03,100:0.01)"
    recipe = Recipe(lr=1.0, schedule=text)
    assert [learning_rate(recipe, step, 200) for step in (0, 29, 30, 99, 100, 199)] == [
        0.1, 0.1, 0.03, 0.03, 0.01, 0.01,
    ]  # fmt: skip
    halves = Recipe(lr=0.3, schedule="table(0:1,5:0.5,7:0.25)")
    assert rates_of(halves, 9) == torchs(MultiStepLR, 0.3, 9, milestones=[5, 7], gamma=0.5)


def rate(step: int) -> float:
    return 0.1 / (step + 1)


def test_a_function_is_asked_once_and_recorded_by_name_and_digest() -> None:
    calls: list[int] = []
    schedule = schedule_of(lambda step: float(calls.append(step) or rate(step)), 5)  # type: ignore[func-returns-value]
    recipe = Recipe(lr=1.0, schedule=schedule)
    assert rates_of(recipe, 5) == rates_of(replace(recipe, ema=0.5), 5) == [
        rate(step) for step in range(5)
    ]  # fmt: skip
    assert calls == [0, 1, 2, 3, 4]
    named = schedule_of(rate, 5)
    assert named.startswith(f"{__name__}:rate@") and named != schedule_of(rate, 4)
    held = Definition(space="s", steps=5, recipe=Recipe(schedule=named)).as_dict()["recipe"]
    assert held["schedule"] == str(named) and type(copy.deepcopy(named)) is str
    recorded = Recipe(**held)
    with pytest.raises(ConfigError, match="expected the function itself, found its name; go on"):
        learning_rate(recorded, 0, 5)


def test_definitions_say_whether_a_rate_restarts() -> None:
    held = Definition(space="s", steps=5).as_dict()["recipe"]
    assert (held["restart_steps"], held["restart_factor"]) == (0, 1)
    recipe = Recipe(schedule="cosine", restart_steps=3, restart_factor=2)
    held = Definition(space="s", steps=5, recipe=recipe).as_dict()["recipe"]
    assert (held["restart_steps"], held["restart_factor"]) == (3, 2)


def test_a_recipe_file_has_restarts_and_groups(tmp_path: Any) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        "schedule = 'cosine'\nrestart_steps = 5\n"
        "[[parameter_groups]]\nmatch = ['bias', 'norm']\nweight_decay = 0.0\n"
        "[[parameter_groups]]\nmatch = 'head.*'\nlr_factor = 0.1\n"
    )
    recipe = read_recipe(path).applied_to(Settings()).recipe
    assert recipe.restart_steps == 5
    assert [(each.match, each.lr_factor, dict(each.options)) for each in recipe.groups] == [
        (("bias", "norm"), 1.0, {"weight_decay": 0.0}), (("head.*",), 0.1, {}),
    ]  # fmt: skip
    text = 'parameter_groups=[{"match": "norm", "weight_decay": 0}]'
    changed = asdict(apply_settings(Settings(recipe=recipe), [text]).recipe)
    assert changed["parameter_groups"] == [{"match": "norm", "weight_decay": 0}]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"restart_steps": 3}, "restart_steps=3: expected schedule=linear or cosine, found 'const"),
        ({"restart_factor": 0}, "restart_factor: expected 1 or more, found 0"),
        ({"schedule": "table(0:1)", "warmup_steps": 2}, r"table\(0:1\): expected warmup_steps=0"),
        ({"schedule": "table(5:1)"}, "expected rising steps from 0, .* found table"),
        ({"schedule": "table(0:1,0:2)"}, "expected rising steps from 0"),
        ({"schedule": "table(0:-1)"}, "with a factor of 0 or more"),
        ({"schedule": "table(x)"}, "as in table"),
        ({"schedule": "tables"}, "schedule: expected constant or .* or table.*, found 'tables'"),
    ],
)
def test_what_cannot_be_used_is_refused(values: Mapping[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        Definition(space="s", steps=1, recipe=Recipe(**values))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("given_rate", "message"),
    [
        (lambda step: -1.0, "lr: expected a rate of 0 or more for step 0, found .* return -1.0"),
        (lambda step: float("nan"), "for step 0, found .*lambda.* to return nan"),
        (lambda step: 1.0 if step < 2 else None, "lr: expected a number for step 2, .* of type No"),
    ],
)
def test_rates_that_are_none_are_refused(given_rate: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        schedule_of(given_rate, 4)


@pytest.mark.parametrize("rates", [{0.5: 1.0}, {0: "a"}, {True: 1.0}, {1: 1.0}, {}])
def test_tables_that_are_none_are_refused(rates: Any) -> None:
    with pytest.raises(ConfigError, match="expected r"):
        table_text(rates)
