"""A layer's step leaves torch's wrapper out, and nothing that anybody put around it."""

from __future__ import annotations

import functools

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from naspipe.worker.layers import own_steps
from naspipe.worker.layers.own_steps import step_of


def _made(kind=torch.optim.SGD):
    parameter = torch.nn.Parameter(torch.arange(6.0))
    parameter.grad = torch.ones(6)
    return parameter, kind([parameter], lr=0.1)


@pytest.fixture
def named(monkeypatch):
    """Steps that were named to torch's profiler."""
    found = []
    inner = torch.autograd.profiler.record_function

    def record(name, *rest):
        found.append(name)
        return inner(name, *rest)

    monkeypatch.setattr(torch.autograd.profiler, "record_function", record)
    return found


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adafactor"])
def test_it_is_torchs_step_without_its_name(name, named):
    parameter, optimizer = _made(getattr(torch.optim, name))
    other, by_torch = _made(getattr(torch.optim, name))
    for _ in range(3):
        with torch.no_grad():
            step_of(optimizer)
        assert not named
        by_torch.step()
        assert named
        named.clear()
    assert torch.equal(parameter, other)


@pytest.mark.parametrize("when", ["pre", "post"])
def test_an_optimizers_own_hook_is_called(when):
    _, optimizer = _made()
    calls = []
    getattr(optimizer, f"register_step_{when}_hook")(lambda *_: calls.append(1))
    step_of(optimizer)
    assert calls == [1]


def test_a_hook_of_all_optimizers_is_called():
    _, optimizer = _made()
    calls = []
    handle = register_optimizer_step_pre_hook(lambda *_: calls.append(1))
    try:
        step_of(optimizer)
    finally:
        handle.remove()
    assert calls == [1]


def test_a_wrapper_of_somebody_elses_is_called(monkeypatch):
    _, optimizer = _made()
    calls, inner = [], torch.optim.SGD.step

    @functools.wraps(inner)
    def step(*given):
        calls.append("class")
        return inner(*given)

    monkeypatch.setattr(torch.optim.SGD, "step", step)
    step_of(optimizer)
    optimizer.step = lambda: calls.append("object")
    step_of(optimizer)
    assert calls == ["class", "object"]


def test_torch_wraps_as_it_is_known_to():
    """Otherwise nothing is gained, and no step is wrong."""
    _made()
    assert torch.optim.SGD.step.__code__ is own_steps._WRAPPER
