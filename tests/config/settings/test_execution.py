"""The execution: groups inside, keys outside, JSON that stays the same."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from naspipe.config.definition import Definition
from naspipe.config.errors import ConfigError
from naspipe.config.execution import Execution, MemorySettings, PipelineSettings
from naspipe.config.recipe import Recipe

MANIFEST = {
    "stages": 2, "recompute": False, "window": 16, "order": "auto", "partly_clear": True,
    "partition": "balanced", "device": "cpu", "memory_budget": "3x", "prefetch": True,
    "bandwidth": 12000000000.0, "latency": 2e-05, "host_memory": "", "activation_memory": "",
    "data_path": "shm", "transport": "ipc", "port": 29600, "interface": "",
    "timeout_seconds": 300.0, "silence_seconds": 30.0, "checkpoint_every": 5,
    "keep_checkpoints": 2, "max_restarts": 0, "validate_every": 0, "validate_subnets": "4",
    "validate_batches": 8, "validate_calibrate": 4, "validate_ema": False, "digests": False,
    "tensorboard": False, "record_events": False,
}  # fmt: skip
"""What a manifest holds of an execution, of some settings."""
DEFINITION = {
    "space": "cv.c3", "scale": "", "data": {}, "loss": "",
    "recipe": {
        "optimizer": "SGD", "lr": 0.1, "optimizer_options": {"momentum": 0.9},
        "parameter_groups": [], "schedule": "constant", "warmup_steps": 0, "restart_steps": 0,
        "restart_factor": 1, "precision": "float32", "feedback_delay": 15, "nonfinite": "stop",
        "threads": 1, "label_smoothing": 0.0, "clip_layer_norm": 0.0, "clip_global_norm": 0.0,
        "passes": "one", "probes": "none", "reduction": "fold", "weight": "passes",
        "norms": "ordered", "ema": 0.0,
    },
    "rules": {"stem": "lag(8)"}, "seed": 0, "steps": 3, "sampler": "uniform", "policy": "csp",
    "bulk": 0,
}  # fmt: skip
"""What it holds of a definition."""


def test_the_json_of_an_execution_stays() -> None:
    execution = Execution(**MANIFEST)
    own = {"window": 16, "partition": "balanced", "memory_budget": "3x", "checkpoint_every": 5}
    assert execution == Execution(stages=2, **own)
    assert {key: execution.as_dict()[key] for key in MANIFEST} == MANIFEST


def test_the_json_of_a_definition_stays() -> None:
    recipe = Recipe(lr=0.1, optimizer_options={"momentum": 0.9})
    definition = Definition(space="cv.c3", steps=3, recipe=recipe, rules={"stem": "lag(8)"})
    assert json.dumps(definition.as_dict()) == json.dumps(DEFINITION)


def test_keys_and_groups_say_the_same() -> None:
    by_keys = Execution(stages=3, memory_budget="1x", prefetch=False)
    memory = MemorySettings(budget="1x", prefetch=False)
    assert by_keys == Execution(pipeline=PipelineSettings(stages=3), memory=memory)
    assert by_keys == Execution(stages=3, memory=memory)
    assert by_keys == Execution().changed(memory=memory, stages=3)
    assert Execution(memory=memory, memory_budget="2x").memory == replace(memory, budget="2x")
    assert by_keys.changed(stages=1).memory == memory and by_keys.pipeline.stages == 3


def test_a_cut_is_for_a_checkpoint_or_a_validation() -> None:
    assert Execution().cut_every_steps == 0
    assert Execution(validate_every=6).cut_every_steps == 6
    assert Execution(validate_every=6, checkpoint_every=3).cut_every_steps == 3


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"stage": 2},
            "stage: unknown key (did you mean stages?); docs/settings.md lists them all",
        ),
        ({"stages": "2"}, "stages: expected a whole number, found '2'"),
        ({"stages": True}, "stages: expected a whole number, found True"),
        ({"stages": 2.0}, "stages: expected a whole number, found 2.0"),
        ({"digests": 1}, "digests: expected true or false, found 1"),
        ({"latency": None}, "latency: expected a number, found None"),
        ({"bandwidth": float("inf")}, "bandwidth: expected a finite number, found inf"),
        ({"memory": {"budget": "3x"}}, "memory: expected MemorySettings, found {'budget': '3x'}"),
        (
            {"validate_every": 8, "checkpoint_every": 3},
            "validate_every: expected a multiple of checkpoint_every, 3, as checkpoints are what",
        ),
    ],
)
def test_what_an_execution_cannot_be(values: dict[str, Any], message: str) -> None:
    for make in (Execution, Execution().changed):
        with pytest.raises(ConfigError) as caught:
            make(**values)
        assert str(caught.value).startswith(message) and "\n" not in str(caught.value)


def test_a_group_checks_itself_under_the_users_keys() -> None:
    with pytest.raises(ConfigError, match=r"^memory_budget: expected bytes, as in 512MiB, or a"):
        MemorySettings(budget="lots")
    assert Execution(timeout_seconds=5).watch.timeout_seconds == 5
