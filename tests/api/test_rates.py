"""Rates by step, and what must not be said beside them."""

from __future__ import annotations

import pytest

from naspipe.api.keywords import Stated
from naspipe.api.train import given_recipe
from naspipe.config.errors import ConfigError


def given(recipe=None, **keywords):
    return given_recipe(recipe, Stated.of(given, keywords=keywords), 4)


def halved(step):
    return 0.1 / 2**step


@pytest.mark.parametrize(("rate", "kind"), [(halved, "a function"), ({0: 0.1, 2: 0.01}, "a table")])
def test_rates_by_step_beside_a_schedule(rate, kind):
    said = (
        f"^lr: expected a number beside schedule='cosine', which says how the rate follows the "
        f"step, found {kind}, which does, too; leave one of them out$"
    )
    with pytest.raises(ConfigError, match=said):
        given(lr=rate, schedule="cosine")
    with pytest.raises(ConfigError, match=said):
        given({"lr": rate, "schedule": "cosine"})


def test_what_goes_before_a_recipes_schedule():
    assert given({"schedule": "cosine"}, lr={0: 0.1}).schedule == "table(0:0.1)"
    assert given({"schedule": "cosine"}, lr=0.5).schedule == "cosine"
