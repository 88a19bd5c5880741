"""Steps of many layers' optimizers in one call leave the bits of one step after the other."""

from __future__ import annotations

import importlib
import itertools

import pytest
import torch

from naspipe.config.recipe import Recipe
from naspipe.config.rules import RECIPES, OwnStep
from naspipe.worker.layers import joint_steps
from naspipe.worker.layers.joint_steps import JOINED, JointSteps
from naspipe.worker.layers.optimizers import make_optimizer
from naspipe.worker.layers.own_steps import take_step

SHAPES = ((64, 33), (1,), (), (3, 2, 5, 5), (257,))
CHOICES = {
    "weight_decay": (0, 0.01),
    "maximize": (False, True),
    "momentum": (0, 0.9),
    "nesterov": (False, True),
    "dampening": (0, 0.1),
    "amsgrad": (False, True),
    "centered": (False, True),
    "lr_decay": (0, 0.01),
}
"""Of options, those that change how an optimizer computes."""


def _options(name):
    """All that an optimizer takes."""
    known = getattr(torch.optim, name)([torch.nn.Parameter(torch.zeros(1))], lr=0.1).defaults
    names = [each for each in CHOICES if each in known]
    for values in itertools.product(*(CHOICES[each] for each in names)):
        options = dict(zip(names, values, strict=True))
        if not options.get("nesterov") or (options["momentum"] and not options["dampening"]):
            yield options


def _layers(recipe, count=5, dtype=torch.float32):
    generator = torch.Generator().manual_seed(3)
    found = []
    for number in range(count):
        shapes = SHAPES[number % 2 :]
        values = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
        values.append(torch.randn(6, 8, generator=generator).to(dtype).t())
        parameters = [torch.nn.Parameter(value) for value in values]
        found.append(make_optimizer(recipe, parameters))
    return found


def _give(optimizers, step):
    """Gradients, that some parameters do not have in some steps."""
    generator = torch.Generator().manual_seed(step)
    for number, optimizer in enumerate(optimizers):
        for place, parameter in enumerate(optimizer.param_groups[0]["params"]):
            gradient = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
            parameter.grad = gradient if (step + number + place) % 3 else None


def _kept(optimizers):
    for optimizer in optimizers:
        for parameter in optimizer.param_groups[0]["params"]:
            state = optimizer.state.get(parameter, {})
            yield parameter.detach()
            yield from (state[name] for name in sorted(state))


def _same(one, other):
    pairs = list(zip(_kept(one), _kept(other), strict=True))
    return all(torch.equal(*pair) if torch.is_tensor(pair[0]) else pair[0] == pair[1]
               for pair in pairs)  # fmt: skip


def _train(recipe, own=RECIPES, dtype=torch.float32, used_by=lambda step: slice(None)):
    """The same steps one by one and joined; who used a layer differs from step to step."""
    alone, joined, joint = _layers(recipe, dtype=dtype), _layers(recipe, dtype=dtype), JointSteps()
    num_joined = 0
    for step in range(6):
        for each in (alone, joined):
            _give(each[used_by(step)], step)
        for one, other in zip(alone[used_by(step)], joined[used_by(step)], strict=True):
            take_step(one, own, step, 0.01 * (step + 1))
            if joint.takes(other, own, 0.01 * (step + 1)):
                num_joined += 1
            else:
                take_step(other, own, step, 0.01 * (step + 1))
        joint.take()
        assert _same(alone, joined), f"step {step}"
    return num_joined


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", JOINED)
def test_whatever_options_the_bits_are_those_of_one_step_after_the_other(name, dtype):
    for options in _options(name):
        recipe = Recipe(optimizer=name, lr=0.1, optimizer_options=options)
        assert _train(recipe, dtype=dtype, used_by=lambda step: slice(step % 3, None, 2))


def _calls(monkeypatch):
    """Parameters of each call of torch's Adam."""
    found = []
    module = importlib.import_module("torch.optim.adam")
    inner = module.adam

    def adam(parameters, *rest, **named):
        found.append(len(parameters))
        return inner(parameters, *rest, **named)

    monkeypatch.setattr(module, "adam", adam)
    return found


def _joint_calls(monkeypatch):
    """Of a step of five layers, by how many parameters they step."""
    optimizers, joint = _layers(Recipe(optimizer="Adam", lr=0.1)), JointSteps()
    for step in (1, 4):  # the first is tried out on small tensors before
        _give(optimizers, step)
        assert all(joint.takes(each, RECIPES, 0.1) for each in optimizers)
        calls = _calls(monkeypatch)
        joint.take()
    with_gradient = sum((4 + number + place) % 3 > 0
                        for number, each in enumerate(optimizers)
                        for place, _ in enumerate(each.param_groups[0]["params"]))  # fmt: skip
    assert sum(calls) == with_gradient
    return calls


def test_layers_are_stepped_together(monkeypatch):
    assert len(_joint_calls(monkeypatch)) == 1


def test_no_more_than_fit_a_cache_are_stepped_together(monkeypatch):
    monkeypatch.setattr(joint_steps, "ENTRIES", 2 * 64 * 33)
    assert len(_joint_calls(monkeypatch)) > 1


@pytest.mark.parametrize(("enough", "calls"), [(3, [1]), (100, [0])])
def test_a_layer_of_enough_parameters_is_stepped_so_alone(monkeypatch, enough, calls):
    monkeypatch.setattr(joint_steps, "ENOUGH", enough)
    recipe = Recipe(optimizer="Adam", lr=0.1)
    (alone,), (joined,), joint = _layers(recipe, 1), _layers(recipe, 1), JointSteps()
    module = importlib.import_module("torch.optim.adam")
    inner, found = module._multi_tensor_adam, []
    for step in range(1, 4):
        _give([alone], step)
        _give([joined], step)
        take_step(alone, RECIPES, step, 0.1)
        assert joint.takes(joined, RECIPES, 0.1)
        monkeypatch.setattr(
            module, "_multi_tensor_adam", lambda *a, **k: (found.append(1), inner(*a, **k))
        )
        joint.take()
        monkeypatch.setattr(module, "_multi_tensor_adam", inner)
        assert _same([alone], [joined])
        assert joined.param_groups[0]["foreach"] is None
    assert [min(len(found), 1)] == calls


def test_groups_and_rates_of_their_own_are_kept_apart():
    recipe = Recipe(optimizer="Adam", lr=0.1)
    alone, joined, joint = _layers(recipe), _layers(recipe), JointSteps()
    for step in range(3):
        for number, (one, other) in enumerate(zip(alone, joined, strict=True)):
            own = OwnStep(lr=1.0 + number % 2)
            _give([one], step)
            _give([other], step)
            take_step(one, own, step, 0.1)
            assert joint.takes(other, own, 0.1)
        joint.take()
        assert _same(alone, joined)


def test_layers_with_steps_of_their_own_are_not_joined():
    (optimizer,) = _layers(Recipe(optimizer="Adam", lr=0.1), 1)
    _give([optimizer], 1)
    joint = JointSteps()
    assert not joint.takes(optimizer, OwnStep(every=4), 0.1)
    assert not joint.takes(optimizer, OwnStep(predicts=2), 0.1)
    optimizer.register_step_pre_hook(lambda *_: None)
    assert not joint.takes(optimizer, RECIPES, 0.1)


def test_a_step_of_a_users_own_is_not_joined():
    (optimizer,) = _layers(Recipe(optimizer="Adam", lr=0.1), 1)
    optimizer.step = lambda: None
    assert not JointSteps().takes(optimizer, RECIPES, 0.1)


def test_sparse_gradients_are_not_joined():
    parameter = torch.nn.Parameter(torch.ones(4, 2))
    optimizer = make_optimizer(Recipe(optimizer="SGD", lr=0.1), [parameter])
    parameter.grad = torch.ones(4, 2).to_sparse()
    assert not JointSteps().takes(optimizer, RECIPES, 0.1)


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(optimizer="NAdam", lr=0.1),
        Recipe(optimizer="RAdam", lr=0.1),
        Recipe(optimizer="ASGD", lr=0.1),
        Recipe(optimizer="LARS", lr=0.1),
        Recipe(optimizer="Adam", lr=0.1, ema=0.9),
        Recipe(optimizer="Adam", lr=0.1, clip_layer_norm=1.0),
        Recipe(optimizer="Adam", lr=0.1, optimizer_options={"foreach": False}),
    ],
)
def test_what_would_leave_other_bits_is_not_joined(recipe):
    assert _train(recipe) == 0


def test_fewer_bits_are_not_joined():
    assert _train(Recipe(optimizer="SGD", lr=0.1), dtype=torch.bfloat16) == 0


def test_a_torch_whose_joint_step_differs_is_found_out(monkeypatch):
    monkeypatch.setattr(joint_steps, "_proved", [])
    module = importlib.import_module("torch.optim.sgd")
    inner = module._multi_tensor_sgd

    def other(params, *rest, **named):
        inner(params, *rest, **named)
        for each in params:
            each.add_(1e-6)

    monkeypatch.setattr(module, "_multi_tensor_sgd", other)
    assert _train(Recipe(optimizer="SGD", lr=0.1)), "they wait, and are taken one by one"


def test_no_gradients_are_left():
    optimizers, joint = _layers(Recipe(optimizer="SGD", lr=0.1)), JointSteps()
    _give(optimizers, 1)
    for each in optimizers:
        joint.takes(each, RECIPES, 0.1)
    joint.take()
    joint.take()
    assert all(p.grad is None for each in optimizers for p in each.param_groups[0]["params"])
