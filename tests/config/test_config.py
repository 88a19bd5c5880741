"""The configuration tree: settings of every kind, and what each refusal says."""

from __future__ import annotations

import json
import math
from dataclasses import fields

import pytest

from naspipe.config.definition import Definition, Settings, apply_settings
from naspipe.config.errors import ConfigError
from naspipe.config.execution import Execution
from naspipe.config.recipe import Recipe
from naspipe.config.rules import Exact, Frozen, Lag
from naspipe.config.settings import declared, groups


def applied(*texts: str) -> Settings:
    return apply_settings(Settings(), texts)


def refusal(*texts: str) -> str:
    with pytest.raises(ConfigError) as caught:
        applied(*texts)
    text = str(caught.value)
    assert "\n" not in text
    return text


RECIPE, EXECUTION = declared(Recipe), declared(Execution)
VALUES = {
    "lr": 0.001, "threads": 2, "clip_global_norm": 2.0, "stages": 4, "recompute": True,
    "prefetch": False, "bandwidth": 1e9, "memory_budget": "3x", "port": 30000,
    "silence_seconds": 7.0, "checkpoint_every": 50, "validate_subnets": "8", "validate_ema": True,
}  # fmt: skip
"""What some of the examples mean; the others must be other than the default."""


def plain(settings: Settings) -> dict[str, object]:
    recipe = {key: getattr(settings.recipe, key) for key in RECIPE}
    return {**recipe, **settings.execution.as_dict()}


def test_every_field_is_declared() -> None:
    assert {each.name for each in fields(Recipe)} == {
        *RECIPE, "optimizer_options", "parameter_groups",
    }  # fmt: skip
    names = {each.name for each in fields(Execution)}
    assert names == {each.group for each in EXECUTION.values()} == set(groups(Execution))


def test_no_setting_of_execution_is_of_the_definition() -> None:
    defining = Definition(space="s", steps=1).as_dict()
    assert not EXECUTION.keys() & {*defining, *defining["recipe"], *RECIPE}
    assert not {each.name for each in EXECUTION.values()} & {*defining, *defining["recipe"]} - {
        "ema"  # of the validation, which judges by the averages that the recipe keeps
    }


@pytest.mark.parametrize("key", [*RECIPE, *EXECUTION])
def test_an_example_has_its_fields_type(key: str) -> None:
    declaration = {**RECIPE, **EXECUTION}[key]
    before, after = plain(Settings()), plain(applied(f" {key} = {declaration.example} "))
    assert type(after[key]) is type(before[key]) is declaration.kind
    assert after[key] != before[key] and after[key] == VALUES.get(key, after[key])
    assert {**after, key: before[key]} == before


@pytest.mark.parametrize("text", ["1", "TRUE", "true"])
def test_what_is_true(text: str) -> None:
    assert applied(f"digests={text}").execution.records.digests is True


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.9", 0.9),
        ("1", 1),
        ("true", True),
        ("[0.9, 0.99]", [0.9, 0.99]),
        ("null", None),
        ("word", "word"),
        ("a=b", "a=b"),
        ("", ""),
    ],
)
def test_optimizer_options_are_json_or_words(text: str, value: object) -> None:
    options = applied(f"optimizer.x={text}").recipe.optimizer_options
    assert options == {"x": value} and type(options["x"]) is type(value)


def test_later_settings_win_and_others_stay() -> None:
    settings = applied("lr=1", "optimizer.a=1", "optimizer.b=2", "lr=2", "optimizer.a=3")
    assert settings.recipe.lr == 2.0
    assert settings.recipe.optimizer_options == {"a": 3, "b": 2}
    before = Settings(recipe=Recipe(optimizer_options={"momentum": 0.9}))
    after = apply_settings(before, ["optimizer.nesterov=true"])
    assert after.recipe.optimizer_options == {"momentum": 0.9, "nesterov": True}
    assert before.recipe.optimizer_options == {"momentum": 0.9}
    same = apply_settings(before, ["optimizer=SGD"])
    assert same == before
    for texts in (["optimizer=Adam", "optimizer.eps=1"], ["optimizer.eps=1", "optimizer=Adam"]):
        another = apply_settings(before, texts).recipe
        assert (another.optimizer, another.optimizer_options) == ("Adam", {"eps": 1})


def test_rules_of_shared_layers() -> None:
    settings = applied("rule.stem=lag(3)", "rule.head=frozen", "rule.a.b=exact")
    assert settings.rules == {"stem": Lag(3), "head": Frozen(), "a.b": Exact()}
    assert refusal("rule.stem=late") == (
        "--set rule.stem: unknown rule 'late': expected exact, frozen, lag(K) or every(M), "
        "as in lag(8) or every(4,lr=2)"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lr", "--set lr: expected key=value, as in --set lr=0.01"),
        ("lr=fast", "--set lr: expected a number, found 'fast'"),
        ("window=1.5", "--set window: expected a whole number, found '1.5'"),
        ("recompute=maybe", "--set recompute: expected true or false, found 'maybe'"),
        ("lr=-1", "lr: expected 0 or more, found -1.0"),
        ("lr=nan", "lr: expected 0 or more, found nan"),
        ("warmup_steps=-1", "warmup_steps: expected 0 or more, found -1"),
        ("precision=fp8", "precision: expected float32 or bf16, found 'fp8'"),
        ("threads=0", "threads: expected 1 to 256, found 0"),
        ("stages=0", "stages: expected 1 or more, found 0"),
        ("window=-1", "window: expected 0 or more, found -1"),
        ("device=tpu", "device: expected cpu, cuda or cuda:N, found 'tpu'"),
        (
            "memory_budget=lots",
            "memory_budget: expected bytes, as in 512MiB, or a number of subnets, as in 3x, "
            "found 'lots'",
        ),
        ("host_memory=0", "host_memory: expected bytes, as in 2GB, found '0'"),
        ("bandwidth=0", "bandwidth: expected more than 0, found 0.0"),
        (
            "partition=best",
            "partition: expected auto or balanced or rotated or static or free or pairs or packed "
            "or layers or hybrid or shared, found 'best'",
        ),
        ("data_path=rdma", "data_path: expected shm or zmq or nccl or cuda_ipc, found 'rdma'"),
        ("transport=udp", "transport: expected ipc or tcp, found 'udp'"),
        (
            "order=random",
            "order: expected paper or critical-path or latest-start or auto, found 'random'",
        ),
        ("port=1023", "port: expected 1024 to 65000, found 1023"),
        ("port=65001", "port: expected 1024 to 65000, found 65001"),
        ("timeout_seconds=0", "timeout_seconds: expected more than 0, at most 86400, found 0.0"),
        ("timeout_seconds=nan", "timeout_seconds: expected more than 0, at most 86400, found nan"),
    ],
)
def test_values_that_do_not_fit(text: str, message: str) -> None:
    assert refusal(text) == message


def test_a_schedule_of_another_name() -> None:
    text = refusal("schedule=steps")
    assert text.startswith("schedule: expected constant") and text.endswith("found 'steps'")
    assert all(name in text for name in ("linear", "cosine", "inverse_sqrt"))


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("momentun", " (did you mean momentum.end?)"),
        ("bias", ""),
        ("windw", " (did you mean window?)"),
        ("warmup_step", " (did you mean warmup_steps?)"),
        ("optimizer_options", " (did you mean optimizer?)"),
        ("optimizer.", " (did you mean optimizer?)"),
        ("rule.", " (did you mean rule.LAYER?)"),
        ("", ""),
        ("__class__", ""),
    ],
)
def test_unknown_keys(key: str, hint: str) -> None:
    text = refusal(f"{key}=1")
    assert text.startswith(f"--set {key}: unknown key{hint}; ")
    if hint:
        assert text.endswith("; docs/settings.md lists them all")
    else:
        assert "; expected one of optimizer, lr," in text
        assert text.endswith("optimizer.OPTION, parameter_groups, rule.LAYER")


def test_nothing_is_applied_when_one_is_refused() -> None:
    before = Settings()
    with pytest.raises(ConfigError):
        apply_settings(before, ["lr=1", "lr=x"])
    assert before == Settings()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 0}, "steps: expected 1 or more, found 0"),
        ({"seed": -1}, "seed: expected 0 or more, found -1"),
    ],
)
def test_definitions_that_cannot_be(changes: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Definition(**{"space": "s", "steps": 1, **changes})  # type: ignore[arg-type]
    assert str(caught.value) == message


def test_manifests_hold_plain_values() -> None:
    recipe = Recipe(optimizer_options={"betas": [0.9, 0.99]}, lr=0.1)
    definition = Definition(space="s", steps=3, recipe=recipe, rules={"stem": "lag(8)"})
    for node in (definition, Execution()):
        assert json.loads(json.dumps(node.as_dict(), allow_nan=False)) == node.as_dict()
    assert definition.as_dict()["recipe"]["lr"] == 0.1
    assert definition.as_dict()["recipe"].keys() == {each.name for each in fields(Recipe)}


def test_a_rate_is_finite() -> None:
    with pytest.raises(ConfigError, match="lr: expected a finite number, found inf"):
        Recipe(lr=math.inf)


@pytest.mark.parametrize("text", ["NaN", "-Infinity", "1e400", "[0.9, [NaN]]", '{"a": NaN}'])
def test_optimizer_options_are_finite(text: str) -> None:
    assert refusal(f"optimizer.x={text}").startswith("optimizer.x: expected finite numbers, found")


def test_values_without_end() -> None:
    assert len(refusal(f"window={'9' * 5000}")) < 150
    assert applied(f"optimizer.x={'9' * 5000}").recipe.optimizer_options == {"x": "9" * 5000}
    assert len(refusal(f"rule.stem=lag({'9' * 5000})")) < 200
