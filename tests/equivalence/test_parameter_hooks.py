"""Hooks of parameters: a chain's layers are copies that have them, or the run is refused."""

from __future__ import annotations

import copy
import functools

import pytest
import torch
from torch import nn
from torch.nn import functional

import naspipe as npp
from naspipe.config.errors import ConfigError
from tests.keyed_draws import start_draws

STEPS = 6


def data(seed, number):
    drawn = torch.Generator().manual_seed(seed * 1000 + number)
    x = torch.randn(8, 6, generator=drawn)
    return {"input": x, "target": (x.sum(1) > 0).long()}


class MasksItself(nn.Module):
    """Registers a method of its own, which reads a buffer of its own."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 6)
        self.register_buffer("mask", (torch.arange(6) % 2).float())
        self.inner.weight.register_hook(self._masked)

    def _masked(self, gradient):
        return gradient * self.mask

    def forward(self, x):
        return self.inner(x)


class Clips:
    def __init__(self, limit):
        self.limit = limit

    def __call__(self, gradient):
        return gradient.clamp(-self.limit, self.limit)


def _scaled(factor, gradient):
    return gradient * factor


def _decayed(parameter):
    parameter.grad.add_(parameter, alpha=0.5)


def by_function(layer):
    mask = torch.zeros(6, 1)
    mask[3:] = 1
    layer.weight.register_hook(lambda gradient: gradient * mask)


def by_object(layer):
    layer.weight.register_hook(Clips(1e-3))


def by_partial(layer):
    layer.bias.register_hook(functools.partial(_scaled, 3.0))


def in_order(layer):
    layer.weight.register_hook(lambda gradient: gradient + 1.0)
    layer.weight.register_hook(lambda gradient: gradient * 2.0)


def late(layer):
    layer.weight.register_post_accumulate_grad_hook(_decayed)


def of_modules(layer):
    layer.register_forward_hook(lambda module, given, found: found * module.bias.sum())
    layer.register_full_backward_hook(lambda module, grads, _: (grads[0] * 2,))


def nets(hook):
    torch.manual_seed(0)
    first = MasksItself() if hook is None else nn.Linear(6, 6)
    if hook is not None:
        hook(first)
    return [nn.Sequential(nn.Linear(6, 6), nn.Tanh()), first, nn.Linear(6, 2)]


def plain(modules, steps=STEPS):
    """The loop of the reproducibility page on the user's own modules, which are not copied."""
    torch.use_deterministic_algorithms(True)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.3) for each in modules]
    losses = []
    for step in range(steps):
        batch = data(0, step)
        x = batch["input"]
        for block, module in enumerate(modules):
            start_draws(f"0/{step}/{block}/0")
            x = module(x.view_as(x) if block else x)
        loss = functional.cross_entropy(x, batch["target"])
        losses.append(loss.item())
        loss.backward()
        for each in optimizers:
            each.step()
            each.zero_grad(set_to_none=True)
    torch.use_deterministic_algorithms(False)
    return losses


HOOKS = [by_function, by_object, by_partial, in_order, late, of_modules, None]


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: getattr(hook, "__name__", "method"))
def test_a_chain_trains_as_the_modules_with_their_hooks_do(tmp_path, hook, stages):
    own = nets(hook)
    losses = plain(own)
    run = npp.train(
        npp.chain(nets(hook)), data, nn.CrossEntropyLoss(), steps=STEPS, lr=0.3, stages=stages,
        progress=False, run_dir=tmp_path / "run", checkpoint_every=3, recompute=stages == 2,
    )  # fmt: skip
    assert run.losses == losses
    for block, module in enumerate(own):
        found = run.chosen(block, 0).state_dict()
        assert all(torch.equal(found[name], each) for name, each in module.state_dict().items())


@pytest.mark.parametrize("hook", [by_function, by_object, in_order])
def test_blockwise_students_keep_their_hooks(tmp_path, hook):
    def students():
        torch.manual_seed(1)
        found = [nn.Linear(6, 6), nn.Linear(6, 2)]
        hook(found[0])
        return found

    def trained(where, given):
        teachers = [nn.Sequential(nn.Linear(6, 6), nn.Tanh()), nn.Linear(6, 2)]
        for each in teachers:
            nn.init.constant_(each[0].weight if len([*each.children()]) else each.weight, 0.1)
        done = npp.distill_blockwise(
            teachers, given, data, steps=4, lr=0.3, run_dir=tmp_path / where
        )
        return done.blocks[0].chosen(0, 0).weight

    torch.manual_seed(2)
    hooked = trained("hooked", students())
    torch.manual_seed(2)
    plain_ones = trained("plain", [copy.deepcopy(each) for each in students()])  # drops the hooks
    assert not torch.equal(hooked, plain_ones)


def holds_its_weight():
    modules = nets(late)
    weight = modules[1].weight
    weight.register_hook(lambda gradient: gradient + 0.1 * weight)
    return modules


def holds_another():
    modules = nets(late)
    modules[1].weight.register_hook(functools.partial(torch.add, modules[2].weight.mean()))
    modules[1].weight.register_hook(functools.partial(_with, modules[2]))
    return modules


def _with(other, gradient):
    return gradient * other.weight.mean()


@pytest.mark.parametrize(
    ("modules", "said"),
    [
        (holds_its_weight, "found weight, which is weight of module 1: a run trains a copy of it"),
        (holds_another, r"found hook.args\[0\].weight, which is weight of module 2: a run trains"),
    ],
)
def test_a_hook_that_holds_what_is_trained_is_refused(modules, said):
    with pytest.raises(ConfigError, match=rf"^module 1 \(Linear\): .*{said}"):
        npp.chain(modules())


@pytest.mark.parametrize(
    ("more", "said"),
    [({"passes": "accumulate:2"}, "expected no register_post_accumulate_grad_hook where a step")],
)
def test_what_a_run_cannot_honour_is_refused(tmp_path, more, said):
    with pytest.raises(ConfigError, match=said):
        npp.train(
            npp.chain(nets(late)), data, nn.CrossEntropyLoss(), steps=2, progress=False,
            run_dir=tmp_path / "run", **more,
        )  # fmt: skip
    assert not (tmp_path / "run").exists()
