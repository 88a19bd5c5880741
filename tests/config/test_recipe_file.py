"""Recipe files: what they say, what --set says after them, and what each refusal says."""

from __future__ import annotations

import tomllib
from dataclasses import asdict
from pathlib import Path

import pytest

from naspipe.config.definition import Settings, apply_settings
from naspipe.config.errors import ConfigError
from naspipe.config.execution import Execution
from naspipe.config.recipe import Recipe
from naspipe.config.recipe_file import FOLDER, read_recipe, recipe_names
from naspipe.config.rules import Lag

OTHERS = {
    "sandwich:2": "accumulate:2",
    "fair": "accumulate:2",
    "uniform": "fair",
    "SGD": "Adam",
    "Adam": "SGD",
    "linear": "cosine",
    "cosine": "constant",
    "inverse_sqrt": "linear",
    "accumulate:4": "accumulate:2",
    "accumulate:8": "accumulate:2",
    "deferred": "ordered",
    "AdamW": "Adam",
}


def other_than(value):
    if isinstance(value, str):
        return OTHERS[value]
    return "[0.5, 0.5]" if isinstance(value, list) else str(value * 2)


def written(tmp_path, text):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    return path


def refusal(name):
    with pytest.raises(ConfigError) as caught:
        read_recipe(name)
    text = str(caught.value)
    assert "\n" not in text and len(text) < 1500
    return text


def test_what_comes_with_naspipe():
    assert {"evolved-transformer", "fairnas", "sandwich", "spos"} <= set(recipe_names())
    spos = read_recipe("spos")
    settings = spos.applied_to(Settings(recipe=Recipe(optimizer_options={"nesterov": True})))
    assert spos.sampler == "uniform" and settings.data == {"batch_size": 64}
    assert settings.recipe.optimizer_options == {"momentum": 0.9, "weight_decay": 4e-5}


@pytest.mark.parametrize("name", recipe_names())
def test_set_overrides_every_field_of_a_recipe(name):
    recipe = read_recipe(name)
    assert recipe.sampler
    settings = recipe.applied_to(Settings())
    for key, value in recipe.values.items():
        other = 0.5 if key in ("momentum.tau", "momentum.end") else other_than(value)
        changed = asdict(apply_settings(settings, [f"{key}={other}"]))
        before = asdict(settings)
        differ = [part for part in before if before[part] != changed[part]]
        assert len(differ) == 1, key


@pytest.mark.parametrize("name", recipe_names())
def test_a_copy_says_the_same(name, tmp_path):
    copy = written(tmp_path, (FOLDER / f"{name}.toml").read_text())
    assert read_recipe(copy).values == read_recipe(name).values
    assert tomllib.loads(copy.read_text())["sampler"] == read_recipe(str(copy)).sampler


def test_a_recipe_may_say_how_it_is_validated(tmp_path):
    path = written(tmp_path, "validate_every = 4\nvalidate_subnets = 3\nvalidate_ema = true")
    execution = read_recipe(path).applied_to(Settings()).execution
    assert execution == Execution(validate_every=4, validate_subnets="3", validate_ema=True)


def test_every_kind_of_value(tmp_path):
    path = written(
        tmp_path,
        """
        lr = 1
        precision = "bf16"
        warmup_steps = 5
        optimizer = "AdamW"
        "optimizer.amsgrad" = true
        [rule]
        stem = "lag(3)"
        [data]
        max_tokens = 100
        """,
    )
    recipe = read_recipe(path)
    settings = recipe.applied_to(Settings(recipe=Recipe(schedule="cosine")))
    assert recipe.sampler is None
    assert settings.recipe == Recipe(
        lr=1.0, precision="bf16", warmup_steps=5, optimizer="AdamW", schedule="cosine",
        optimizer_options={"amsgrad": True},
    )  # fmt: skip
    assert settings.rules == {"stem": Lag(3)} and settings.data == {"max_tokens": 100}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lr = 'fast'", "lr: expected a number, found 'fast'"),
        ("lr = '0.1'", "lr: expected a number, found '0.1'"),
        ("lr = true", "lr: expected a number, found True"),
        ("lr = nan", "lr: expected 0 or more, found nan"),
        ("warmup_steps = 1.5", "warmup_steps: expected a whole number, found 1.5"),
        ("warmup_steps = -1", "warmup_steps: expected 0 or more, found -1"),
        ("precision = 16", "precision: expected a text, found 16"),
        ("schedule = 'steps'", "schedule: expected constant or linear"),
        ("sampler = 3", "sampler: expected a text, found 3"),
        ("learning_rate = 1", "learning_rate: unknown key; expected one of optimizer, lr,"),
        ("warmup_step = 1", "unknown key (did you mean warmup_steps?); docs/settings.md lists"),
        ("window = 3", "window says how a run is carried out, which is no part of a recipe; give"),
        (
            "[optimiser]\nlr = 1",
            "unknown table [optimiser]; expected [optimizer], [rule], [data], [momentum]",
        ),
        ("[optimizer]\nname = 3", "optimizer: expected a text, found 3"),
        ("[optimizer]\nt0 = 2026-11-21", "optimizer.t0: expected a plain value, found datetime."),
        ("[optimizer]\nx = inf", "optimizer.x: expected finite numbers, found inf"),
        ("[rule]\nstem = 8", "rule.stem: expected a text, found 8"),
        ("[rule]\nstem = 'late'", "rule.stem: unknown rule 'late': expected exact, frozen, lag"),
        ("[data]\nbatch_size = 0", "data.batch_size: expected 1 or more, found 0"),
        ("[data]\nimages = 3", "data.images: unknown key"),
        ("[data]\nbatch_size = 2026-11-21", "data.batch_size: expected a whole number, found"),
        ("lr = 1\nlr = 2", "expected a TOML file, found Cannot overwrite a value"),
        ("lr = ", "expected a TOML file, found Invalid value"),
    ],
)
def test_what_cannot_be_used(text, message, tmp_path):
    path = written(tmp_path, text)
    assert refusal(path).startswith(f"recipe {path}: ")
    assert message in refusal(path)


def test_files_that_cannot_be_read(tmp_path):
    assert refusal(tmp_path / "no.toml").endswith(
        "expected a TOML file, found No such file or directory"
    )
    assert refusal(tmp_path.with_suffix(".toml")).startswith("recipe ")
    (tmp_path / "a.toml").write_bytes(b"\xff\xfe")
    assert "expected a TOML file, found 'utf-8' codec" in refusal(tmp_path / "a.toml")
    (tmp_path / "b.toml").write_bytes(b"#" * (1 << 21))
    assert refusal(tmp_path / "b.toml").endswith("found more than 1 MiB")
    (tmp_path / "c.toml").write_text("a = " + "[" * 100_000)
    assert "expected a TOML file" in refusal(tmp_path / "c.toml")


def test_names_that_do_not_exist():
    names = ", ".join(recipe_names())
    assert refusal("spo") == (
        f"unknown recipe 'spo' (did you mean spos?): expected {names}, or a file, as in mine.toml"
    )
    assert refusal("../spos").endswith("expected a TOML file, found No such file or directory")
    assert refusal("").startswith("unknown recipe ''")
    assert refusal(Path("x" * 500)).startswith("unknown recipe 'xxx")
