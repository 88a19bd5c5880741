"""Settings as keywords and in mappings: complete, in one place, and refused with what was meant."""

from __future__ import annotations

import inspect
import pydoc

import pytest
import torch
from torch import nn

import naspipe as npp
from naspipe.api.keywords import Stated
from naspipe.config.definition import DATA_SIZES, MOMENTUM
from naspipe.config.errors import ConfigError
from naspipe.config.execution import Execution
from naspipe.config.recipe import Recipe
from naspipe.config.settings import declared
from tests.equivalence import spaces

SCHEDULER = torch.optim.lr_scheduler.CosineAnnealingLR(
    torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1), 10
)


class RefusedError(Exception):
    """What a test's run ends with, once all keywords are read."""


@pytest.fixture
def defined(monkeypatch):
    """What a call of ``train`` would train, and how; nothing is run."""
    from naspipe.api import train as api

    def catch(workloads, execution, *_, **__):
        raise RefusedError(workloads[0], execution)

    monkeypatch.setattr(api, "train_together", catch)

    def define(**how):
        how = {"steps": 4, **how}
        with pytest.raises(RefusedError) as found:
            npp.train(spaces.mixed(), spaces.vectors, nn.CrossEntropyLoss(), **how)
        return found.value.args

    return define


def test_settings_are_keywords_or_lie_in_a_mapping(defined):
    said = {"stages": 2, "memory_budget": "2x", "passes": 2, "lr": 0.5, "window": 3}
    for how in (said, {"settings": said}, {"execution": said}):
        workload, execution = defined(**how)
        assert (execution.pipeline.stages, execution.pipeline.window) == (2, 3)
        assert execution.memory.budget == "2x"
        assert (workload.recipe.passes, workload.recipe.lr) == ("accumulate:2", 0.5)


@pytest.mark.parametrize("key", [*declared(Recipe), *declared(Execution)])
def test_every_setting_that_set_knows_is_a_keyword(key):
    found = Stated.of(npp.train, keywords={key: "value"})
    assert {**found.recipe, **found.execution} == {key: "value"}


def test_options_and_rules_have_the_keys_of_the_command_line(defined):
    (rule,) = list(spaces.mixed().shared_rules)[:1]
    workload, _ = defined(settings={"optimizer.momentum": 0.5, f"rule.{rule}": "lag(3)"})
    assert workload.recipe.optimizer_options == {"momentum": 0.5}
    assert workload.space.shared_rules[rule] == npp.Lag(3)
    workload, _ = defined(
        optimizer="Adam", settings={"optimizer.eps": 0.1}, recipe={"optimizer_options": {"lr": 1}}
    )
    assert workload.recipe.optimizer_options == {"eps": 0.1}


@pytest.mark.parametrize("where", ["keyword", "settings", "recipe"])
def test_parameter_groups_are_a_keyword_like_the_others(defined, where):
    groups = {"parameter_groups": [{"match": ["bias"], "weight_decay": 0}]}
    workload, _ = defined(**(groups if where == "keyword" else {where: groups}))
    assert list(workload.recipe.parameter_groups) == groups["parameter_groups"]


def test_whole_numbers_stand_for_texts(defined):
    workload, execution = defined(passes=1, validate_subnets=3)
    assert workload.recipe.passes == "one" and execution.validation.subnets == "3"


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"stagez": 2}, r"stagez: unknown key in keywords \(did you mean stages\?\)"),
        ({"weight_decay": 0.1}, r"weight_decay: expected it in optimizer_options={'weight_decay'"),
        ({"settings": {"momentum": 0.9}}, r"momentum: expected it in optimizer_options="),
        ({"step": 2}, r"step: unknown key in keywords \(did you mean steps\?\)"),
        ({"memory_buget": "2x"}, r"did you mean memory_budget\?"),
        ({"setings": {}}, r"did you mean settings\?"),
        ({"settings": {"windw": 1}}, r"windw: unknown key in settings \(did you mean window\?\)"),
        ({"execution": {"windw": 1}}, r"windw: unknown key in execution \(did you mean window\?\)"),
        ({"execution": {3: 1}}, "3: unknown key in execution; expected a setting"),
        ({"recipe": {"schedul": "cosine"}}, r"found \['schedul'\] \(did you mean schedule\?\)"),
        ({"stages": 2, "execution": {"stages": 1}}, "stages: expected one value, found 2 in keywo"),
        ({"lr": 0.1, "settings": {"lr": 0.2}}, "lr: expected one value.*0.2 in settings; leave"),
        (
            {"settings": {"window": 1}, "execution": {"window": 2}},
            "found 1 in settings and 2 in ex",
        ),
        ({"settings": {"seed": 1}}, r"seed: expected it as an argument, naspipe.train\(..., seed="),
        ({"settings": {"momentum.tau": 0.9}}, r"expected it in the teacher.*naspipe.Momentum"),
        ({"settings": {"data.batch_size": 9}}, "expected it where the data are made"),
        ({"settings": {"rule.stem": 3}}, r"rule.stem: expected a rule, as in naspipe.Lag\(2\)"),
        ({"settings": {"rule.": "exact"}}, "rule.: unknown key in settings"),
        ({"execution": Execution()}, "execution: expected a mapping of settings.*found Execution"),
        ({"optimizer_options": 3}, "optimizer_options: expected a mapping"),
        ({"window": "wide"}, "window: expected a whole number, found 'wide'"),
        ({"passes": "two"}, "passes: expected one, accumulate:N"),
        ({"stages": 99}, "at most one stage per block; choose stages=[0-9]+ or less"),
        ({"clip_layer_norm": -1}, "clip_layer_norm: expected"),
        ({"steps": None}, "steps: expected how many to train, as in steps=1000, found none"),
        ({"sampler": "random"}, r"sampler 'random': .*\(did you mean uniform\?\)"),
        ({"warmup_steps": 3}, "warmup_steps=3: expected at most the run's steps=2"),
        ({"recipe": {"warmup_steps": 3}}, "warmup_steps=3: expected at most the run's steps=2"),
        ({"batch_size": 8}, r"it in the data, as in npp.from_dataset\(dataset, batch_size=...\)"),
        ({"epochs": 8}, r"epochs: expected it in optimizer steps, as in steps=epochs \* len\("),
        ({"learning_rate": 0.1}, "learning_rate: expected it as lr="),
        ({"amp": True}, "amp: expected it as precision='bf16'"),
        ({"gradient_accumulation_steps": 2}, "expected it as passes='accumulate:N'"),
        ({"early_stopping": 3}, "early_stopping: expected it in an observer's on_validation"),
        ({"schedule": SCHEDULER}, "schedule: .*, found CosineAnnealingLR; write schedule='cosine'"),
        ({"schedule": type(SCHEDULER)}, "found CosineAnnealingLR; write schedule='cosine' or"),
        ({"lr": SCHEDULER}, "lr: expected no scheduler of torch's, .* or lr=FUNCTION, which"),
        ({"schedule": lambda step: 0.1}, "schedule: expected a name, .* found a function; write"),
        ({"validate_every": 2}, "held-out data: .* found none; give held_out=FUNCTION, or your"),
    ],
)
def test_what_is_wrong_is_refused_in_one_line(tmp_path, how, said):
    loss = nn.CrossEntropyLoss()
    path = tmp_path / "run"
    with pytest.raises(ConfigError, match=said) as refused:
        npp.train(spaces.mixed(), spaces.vectors, loss, **{"steps": 2, "run_dir": path, **how})
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 400
    assert not path.exists()


@pytest.mark.parametrize(("loss", "said"), [
    ("ce", r"found the text 'ce'; write the loss itself, as in torch.nn.CrossEntropyLoss\(\)"),
    (nn.CrossEntropyLoss, r"found the class CrossEntropyLoss; write CrossEntropyLoss\(...\)"),
])  # fmt: skip
def test_what_is_no_loss(loss, said):
    with pytest.raises(ConfigError, match=f"^loss: expected a function of .*{said}"):
        npp.train(spaces.mixed(), spaces.vectors, loss, steps=2)


def test_a_recipes_warm_up_may_be_longer_than_a_short_run(defined, tmp_path):
    (tmp_path / "long.toml").write_text("warmup_steps = 50\n")
    workload, _ = defined(recipe=tmp_path / "long.toml")
    assert workload.recipe.warmup_steps == 50


def test_the_same_said_twice_is_no_conflict(defined):
    _, execution = defined(stages=2, execution={"stages": 2})
    assert execution.pipeline.stages == 2


def test_a_definition_takes_no_execution():
    with pytest.raises(ConfigError, match=r"window: expected it in the naspipe.Execution"):
        npp.workload(spaces.mixed(), spaces.vectors, nn.CrossEntropyLoss(), steps=2, window=3)


@pytest.mark.parametrize("key", [*DATA_SIZES, *MOMENTUM])
def test_what_belongs_to_objects_says_where(key):
    with pytest.raises(ConfigError, match=r"expected it (where|in the teacher)"):
        Stated.of(npp.train, settings={key: 1})


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"stagez": 2}, r"did you mean stages\?"),
        ({"steps": 9}, "steps: expected it as budget=..., how many subnets are judged"),
        ({"strateg": "random"}, r"did you mean strategy\?"),
        ({"populaton": 20}, r"did you mean population\?"),
        ({"options": {"populaton": 20}}, r"populaton: unknown key in options \(did you mean popu"),
        ({"strategy": "random", "population": 20}, "population: unknown key in keywords"),
        (
            {"limits": {"param": 5}},
            r"param: unknown key in limits \(did you mean params\?\); expected flops, params, ",
        ),
        ({"limits": 5}, "limits: expected a mapping"),
        ({"stages": 2, "execution": {"stages": 1}}, "stages: expected one value"),
        ({"lr": 0.1}, "lr: unknown key in keywords"),
        ({"max_params": "60k"}, r"max_params: expected it in limits, as in limits={'params': ...}"),
        ({"loss_fields": ("target",)}, "loss_fields: expected it in the training alone, whose run"),
    ],
)
def test_a_search_refuses_in_one_line(tmp_path, how, said):
    run = npp.Run(spaces.mixed(), tmp_path)
    with pytest.raises(ConfigError, match=said) as refused:
        npp.search_subnets(run, spaces.vectors, nn.CrossEntropyLoss(), **how)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("call", [npp.train, npp.search_subnets])
def test_help_fits_two_screens(call):
    text = pydoc.render_doc(call, renderer=pydoc.plaintext)
    screen_lines = sum(1 + len(line) // 100 for line in text.splitlines())
    assert screen_lines <= 100
    for name in inspect.signature(call).parameters:
        assert f"{name}:" in text or f"``{name}``" in text or f"{name}," in text


@pytest.mark.parametrize("name", [
    "steps", "stages", "seed", "lr", "optimizer", "sampler", "held_out", "validate_every", "resume",
    "checkpoint_every", "schedule", "warmup_steps", "passes", "clip_layer_norm", "memory_budget",
    "device", "threads",
])  # fmt: skip
def test_help_names_the_common_keywords(name):
    """A line of its own or two; each of them is a keyword."""
    text = pydoc.render_doc(npp.train, renderer=pydoc.plaintext)
    assert f"    {name}: " in text
    assert name in {
        *inspect.signature(npp.train).parameters,
        *declared(Recipe),
        *declared(Execution),
    }


def test_a_network_is_no_space():
    with pytest.raises(ConfigError, match=r"^space: expected a naspipe\.Space, found Linear; list"):
        npp.train(nn.Linear(2, 2), spaces.vectors, nn.CrossEntropyLoss(), steps=1)
