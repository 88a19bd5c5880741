"""What `naspipe.train` is given in place of a recipe file."""

from __future__ import annotations

import pytest
from torch import nn

import naspipe as npp
from naspipe.config.errors import ConfigError
from naspipe.config.recipe import Recipe
from tests.equivalence import spaces


def train(path, recipe, **more):
    loss = nn.CrossEntropyLoss()
    return npp.train(
        spaces.mixed(), spaces.vectors, loss, steps=2, recipe=recipe, run_dir=path / "run", **more
    )


@pytest.mark.parametrize(
    ("recipe", "found"), [({"rate": 1}, r"\['rate'\]"), ({3: 4}, r"\['3'\]"), (Recipe(), "Recipe")]
)
def test_a_recipe_that_is_none_is_refused(tmp_path, recipe, found):
    with pytest.raises(
        ConfigError, match=f"recipe: expected a file or a mapping of optimizer.* found {found}$"
    ):
        train(tmp_path, recipe)
    assert not (tmp_path / "run").exists()


def test_an_argument_goes_before_the_recipe(tmp_path):
    run = train(tmp_path, {"lr": 0.5, "label_smoothing": 0.1}, lr=0.25)
    definition = run.manifest["definition"]["recipe"]
    assert (definition["lr"], definition["label_smoothing"]) == (0.25, 0.1)
