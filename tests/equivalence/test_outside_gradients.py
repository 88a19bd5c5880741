"""Gradients and values that reach the loss, or a layer, past the outputs: refused before a run."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

import naspipe as npp
from naspipe.config.errors import ConfigError, NaspipeError

WEIGHTS = nn.Parameter(torch.zeros(2))
FEATURES: dict[str, torch.Tensor] = {}


def data(seed, number):
    drawn = torch.Generator().manual_seed(seed * 1000 + number)
    x = torch.randn(8, 6, generator=drawn)
    return {"input": x, "target": (x.sum(1) > 0).long()}


class Balanced(nn.Module):
    """Leaves an auxiliary loss in an attribute, as mixtures of experts do."""

    def __init__(self):
        super().__init__()
        self.router, self.l_aux = nn.Linear(6, 6), 0.0

    def forward(self, x):
        share = self.router(x).softmax(-1)
        self.l_aux = share.mean(0).pow(2).sum()
        return x * share


def nets(middle=None):
    torch.manual_seed(0)
    return [nn.Linear(6, 6), middle or nn.Sequential(nn.Tanh(), nn.Linear(6, 6)), nn.Linear(6, 2)]


def penalty(modules):
    return 0.01 * sum(p.abs().sum() for m in modules for p in m.parameters())


def in_closure(modules):
    def loss(output, target):
        return functional.cross_entropy(output, target) + penalty(modules)

    return loss


def in_default(modules):
    def loss(output, target, weight=modules[2].weight):
        return functional.cross_entropy(output, target) + weight.norm()

    return loss


class InAttribute:
    def __init__(self, modules):
        self.model = nn.Sequential(*modules)

    def __call__(self, output, target):
        return functional.cross_entropy(output, target) + penalty(self.model)


class InSlot:
    __slots__ = ("scales",)

    def __init__(self, _):
        self.scales = {"first": nn.Parameter(torch.ones(()))}

    def __call__(self, output, target):
        return functional.cross_entropy(output, target) * self.scales["first"]


class InMethod:
    def __init__(self, modules):
        self.modules = modules

    def loss(self, output, target):
        return functional.cross_entropy(output, target) + penalty(self.modules)


def in_global(_):
    def loss(output, target):
        return functional.cross_entropy(output, target) * torch.exp(-WEIGHTS[0]) + WEIGHTS[0]

    return loss


def elastic_weights(modules):
    old = [p.detach().clone() for p in modules[0].parameters()]

    def loss(output, target):
        pairs = zip(modules[0].parameters(), old, strict=True)
        return functional.cross_entropy(output, target) + sum(
            (p - q).pow(2).sum() for p, q in pairs
        )

    return loss


OUTSIDE = [
    (in_closure, r"modules\[0\]\.weight"),
    (in_default, r"weight"),
    (InAttribute, r"loss\.model\.0\.weight"),
    (InSlot, r"loss\.scales\['first'\]"),
    (lambda modules: InMethod(modules).loss, r"loss\.modules\[0\]\.weight"),
    (in_global, r"WEIGHTS"),
    (elastic_weights, r"modules\[0\]\.weight"),
]


def train(tmp_path, modules, loss, stages=1, **more):
    space = modules if isinstance(modules, npp.Space) else npp.chain(modules)
    return npp.train(
        space, data, loss, steps=4, stages=stages, progress=False, run_dir=tmp_path / "run", **more
    )


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize(("make", "path"), OUTSIDE)
def test_a_loss_with_a_gradient_for_another_tensor_is_refused(tmp_path, make, path, stages):
    modules = nets()
    with pytest.raises(ConfigError, match=rf"^loss .*found one for {path} \(shape \[") as caught:
        train(tmp_path, modules, make(modules), stages)
    assert "\n" not in str(caught.value) and not (tmp_path / "run").exists()


def reads_attribute(modules):
    def loss(output, target):
        extra = sum(m.l_aux for m in modules if hasattr(m, "l_aux"))
        return functional.cross_entropy(output, target) + extra

    return loss


def test_an_attribute_that_a_layer_leaves_for_the_loss_is_refused(tmp_path):
    modules = nets(Balanced())
    with pytest.raises(ConfigError, match=r"^loss .*found one for modules\[1\]\.router"):
        train(tmp_path, modules, reads_attribute(modules))
    assert not (tmp_path / "run").exists()


def hooked(detaches):
    modules = nets()

    def keep(module, given, found):
        FEATURES["hidden"] = found.detach() if detaches else found

    modules[1].register_forward_hook(keep)
    return modules


def reads_features(output, target):
    return functional.cross_entropy(output, target) + FEATURES["hidden"].pow(2).mean()


def takes_features(output, target):
    return functional.cross_entropy(output, target) + FEATURES.pop("hidden").pow(2).mean()


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("loss", [reads_features, takes_features])
@pytest.mark.parametrize(
    ("detaches", "said"), [(False, "a parameter of another module"), (True, "expected the same")]
)
def test_features_that_a_hook_leaves_for_the_loss_are_refused(
    tmp_path, loss, detaches, said, stages
):
    FEATURES.clear()
    with pytest.raises(ConfigError, match=rf"^(loss .*{said}|the forward .*FEATURES)") as caught:
        train(tmp_path, hooked(detaches), loss, stages)
    assert "\n" not in str(caught.value) and not (tmp_path / "run").exists()


class Leaves(nn.Module):
    def forward(self, x):
        FEATURES["left"] = x.detach().mean()
        return x


class Takes(nn.Module):
    def forward(self, x):
        return x * FEATURES["left"]


def test_a_value_that_one_layer_leaves_for_another_is_refused(tmp_path):
    modules = [nn.Linear(6, 6), Leaves(), nn.Linear(6, 6), Takes(), nn.Linear(6, 2)]
    with pytest.raises(
        ConfigError, match=r"^layer 3\.0 \(Takes\): .*a second call returned something else"
    ):
        train(tmp_path, modules, nn.CrossEntropyLoss())
    assert not (tmp_path / "run").exists()


class Hides(nn.Module):
    """A parameter in a plain list is not one of the module's."""

    def __init__(self, other=None):
        super().__init__()
        self.inner, self.hidden = nn.Linear(6, 6), [other or nn.Parameter(torch.ones(6))]

    def forward(self, x):
        return self.inner(x) * self.hidden[0]


@pytest.mark.parametrize("stages", [1, 2])
def test_a_layer_with_a_gradient_for_another_tensor_is_refused(tmp_path, stages):
    with pytest.raises(ConfigError, match=r"^layer 1\.0 \(Hides\): .*Hides\.hidden\[0\] \(shape"):
        train(tmp_path, nets(Hides()), nn.CrossEntropyLoss(), stages)
    assert not (tmp_path / "run").exists()


def test_what_the_check_has_no_time_for_is_found_in_the_first_step(tmp_path, monkeypatch):
    monkeypatch.setattr("naspipe.checks.tried_layers.MOST_SECONDS", -1.0)
    modules = nets()
    with pytest.raises(NaspipeError, match=r"loss .*expected a gradient for the outputs alone"):
        train(tmp_path, modules, in_closure(modules))


def with_own_leaves(output, target):
    """A gradient penalty: leaves that are made in the call, and end with it."""
    point = output.detach().requires_grad_()
    (slope,) = torch.autograd.grad(functional.cross_entropy(point, target), point)
    again = torch.zeros((), requires_grad=True) * slope.sum()
    return functional.cross_entropy(output, target) + slope.pow(2).sum() + again


def frozen_judge(_):
    torch.manual_seed(3)
    judge = nn.Linear(2, 2).requires_grad_(False)
    return lambda output, target: functional.cross_entropy(judge(output), target)


def of_constant(modules):
    width = modules[0].out_features

    def loss(output, target):
        return functional.cross_entropy(output, target) / (width + len(modules))

    return loss


FINE = [
    lambda _: with_own_leaves,
    frozen_judge,
    of_constant,
    lambda _: nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0])),
]


@pytest.mark.parametrize("make", FINE)
def test_what_holds_constants_alone_is_trained(tmp_path, make):
    modules = nets()
    runs = [
        train(tmp_path / str(stages), copy.deepcopy(modules), make(modules), stages)
        for stages in (1, 2)
    ]
    assert runs[0].losses == runs[1].losses
