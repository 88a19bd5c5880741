"""Profiles in processes of their own, one or several at once."""

from __future__ import annotations

from dataclasses import replace
from multiprocessing import get_context

import pytest
from torch import nn

import naspipe as npp
from naspipe.api import planning as run_plan
from naspipe.api.planning import cores_for
from naspipe.config.errors import ConfigError, StageFailedError
from naspipe.config.execution import Execution
from naspipe.profiling import profiler
from naspipe.profiling import profiles as profile_apart_module
from naspipe.profiling.profiles import profile_apart
from tests.profiling.test_profiler import BATCH, noted_space, workload


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(profiler, "MAX_ROUNDS", profiler.MIN_ROUNDS)


@pytest.mark.parametrize("copies", [1, 2])
def test_copies_measure_at_once(copies):
    """Each waits for the others to begin."""
    barrier = get_context("fork").Barrier(copies)

    def data(seed, number):
        if number == 0:
            barrier.wait(30)
        return BATCH

    found = profile_apart(replace(workload(noted_space([], (3, 2))), data=data), 60, copies=copies)
    assert set(found.costs) == {(b, c) for b in range(4) for c in range((3, 3, 2, 2)[b])}
    assert all(cost.forward_ns > 0 for cost in found.costs.values())


@pytest.mark.parametrize(("seconds", "said"), [(60.0, []), (0.0, ["profiling 5 layers"])])
def test_a_slow_one_is_told_of(monkeypatch, seconds, said):
    monkeypatch.setattr(profile_apart_module, "SLOW_SECONDS", seconds)
    told = []
    profile_apart(workload(noted_space([], (3, 2))), 60, say=told.append)
    assert told == said


def test_what_one_of_them_refuses_is_said():
    def data(seed, number):
        raise ConfigError("no such data")

    with pytest.raises(ConfigError, match="no such data"):
        profile_apart(replace(workload(noted_space([], (3, 2))), data=data), 60, copies=2)


class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 6)

    def forward(self, x):
        return x + self.linear(x)


def test_the_layer_that_raises_is_named_with_the_users_lines():
    space = npp.Space("wide", [npp.Block([nn.Identity]), npp.Block([nn.Identity, Wide])])
    with pytest.raises(StageFailedError) as caught:
        profile_apart(workload(space), 60)
    assert caught.value.task == "the profile of layer 1.1"
    *_, said, layer = caught.value.traceback_text.splitlines()
    assert said.startswith("RuntimeError: The size of tensor a (8)")
    assert layer == "in layer 1.1 (Wide), called with [4, 8]"
    assert "return x + self.linear(x)" in caught.value.traceback_text
    assert "probes.py" not in caught.value.traceback_text


def test_as_many_at_once_as_cores_allow(monkeypatch):
    monkeypatch.setattr(run_plan.os, "sched_getaffinity", lambda _: set(range(4)))
    one, two = (
        workload(noted_space([], (3, 2)), recipe={"threads": threads}) for threads in (1, 2)
    )
    counts = [cores_for(one, Execution(), workers) for workers in (1, 2, 4, 8)]
    assert counts == [1, 2, 4, 4]
    assert [cores_for(two, Execution(), workers) for workers in (1, 2, 4)] == [1, 2, 2]
    assert cores_for(one, Execution(device="cuda"), 4) == 1
