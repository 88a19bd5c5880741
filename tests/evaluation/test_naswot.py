"""NASWOT against codes that are counted one by one, and numpy's determinant."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import naspipe
from naspipe.config.errors import ConfigError
from naspipe.evaluation.proxies import Naswot, log_determinant

VECTORS = {"input": torch.randn(6, 4, generator=torch.Generator().manual_seed(3))}


def judge(modules, batch=None):
    return Naswot(naspipe.chain(modules), 0, 1, batch or VECTORS)


def score(modules, batch=None):
    return judge(modules, batch)((0,) * len(modules))


def units(modules, batch=None):
    return judge(modules, batch).units((0,) * len(modules))


def linear(inputs, outputs, seed=0):
    torch.manual_seed(seed)
    return nn.Linear(inputs, outputs)


def counted(codes):
    """The score of a table of bits, a row for each sample."""
    kernel = [[sum(a == b for a, b in zip(x, y, strict=True)) for y in codes] for x in codes]
    found = np.linalg.slogdet(np.array(kernel, dtype=np.float64))[1]
    assert math.isfinite(found)
    return found


class Of(nn.Module):
    """A function as a layer."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def test_codes_are_those_of_every_rectified_unit():
    first, second = linear(4, 30, 1), linear(30, 17, 2)
    inputs = first(VECTORS["input"])
    codes = torch.cat([inputs > 0, second(inputs.relu()) > 0], 1).tolist()
    found = score([first, nn.ReLU(), nn.Sequential(second, nn.ReLU(inplace=True)), linear(17, 2)])
    assert found == pytest.approx(counted(codes), rel=1e-12)
    assert units([first, nn.ReLU(), second, nn.ReLU()]) == 47


def test_maps_count_unit_by_unit():
    torch.manual_seed(0)
    images = {"input": torch.randn(5, 1, 4, 4)}
    conv = nn.Conv2d(1, 3, 3)
    codes = (conv(images["input"]) > 0).flatten(1).tolist()
    assert score([conv, nn.ReLU()], images) == pytest.approx(counted(codes), rel=1e-12)


@pytest.mark.parametrize(
    "rectifier",
    [
        nn.ReLU6(), nn.LeakyReLU(), nn.LeakyReLU(inplace=True), nn.ReLU(inplace=True),
        Of(torch.relu), Of(functional.relu_), Of(lambda x: x.relu()), Of(functional.relu6),
    ],
    ids=str,
)  # fmt: skip
def test_functions_count_as_modules_do(rectifier):
    first = linear(4, 30, 1)
    codes = (first(VECTORS["input"]) > 0).tolist()
    assert score([first, rectifier]) == pytest.approx(counted(codes), rel=1e-12)


def test_other_activations_do_not():
    for other in (nn.GELU(), nn.SiLU(), nn.Hardtanh(), nn.Hardswish(), nn.Tanh()):
        assert units([linear(4, 9), other]) == 0
        assert score([linear(4, 9), other]) == -math.inf


def test_samples_that_are_not_told_apart_are_least():
    rows = VECTORS["input"]
    twice = {"input": torch.cat([rows[:3], rows[:1]])}
    assert score([linear(4, 30), nn.ReLU()], {"input": rows[:3]}) > -math.inf
    assert score([linear(4, 30), nn.ReLU()], twice) == -math.inf
    few = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]])
    assert log_determinant(kernel_of(few), 2) == -math.inf, "of rank 3: two units"


def test_rounding_tells_no_equal_codes_apart():
    """An elimination in floats often finds a determinant above 0 for them."""
    for seed in range(10):
        draw = torch.Generator().manual_seed(seed)
        codes = (torch.rand(64, 997, generator=draw) > 0.5).int()
        assert log_determinant(kernel_of(codes), 997) > 0
        codes[63] = codes[3]
        assert log_determinant(kernel_of(codes), 997) == -math.inf


def kernel_of(codes):
    codes = codes.double()
    return codes @ codes.T + (1 - codes) @ (1 - codes).T


def test_norms_take_the_statistics_of_the_batch():
    first, norm = linear(4, 30, 1), nn.BatchNorm1d(30)
    with torch.no_grad():
        norm.running_mean.fill_(50.0)
    inputs = first(VECTORS["input"])
    codes = (inputs > inputs.mean(0)).tolist()
    assert score([first, norm, nn.Dropout(0.9), nn.ReLU()]) == pytest.approx(counted(codes))


def test_order_and_training_do_not_matter_and_skips_are_least():
    def block():
        return nn.Sequential(nn.Linear(8, 8), nn.ReLU())

    blocks = [naspipe.Block([block, nn.Identity]) for _ in range(2)]
    stem = naspipe.Shared("stem", lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU()))
    space = naspipe.Space("mine", [stem, *blocks, naspipe.Shared("head", lambda: nn.Linear(8, 2))])
    there, back = Naswot(space, 1, 1, VECTORS), Naswot(space, 1, 1, VECTORS)
    subnets = [(0, 0), (0, 1), (1, 0), (1, 1)]
    found = [*map(there, subnets)]
    assert found == [*map(back, reversed(subnets))][::-1]
    assert found[3] == min(found) and found[3] < found[0]
    assert found == [*map(there, subnets)], "a judged subnet leaves no trace"
    assert Naswot(space, 2, 1, VECTORS)((0, 0)) != found[0]


def test_layers_that_rectify_something_else_than_samples_are_refused():
    turned = Of(lambda x: x.T.relu())
    with pytest.raises(ConfigError, match=r"rectify 6 samples in the first .* shape \(4, 6\)"):
        score([turned])
    with pytest.raises(ConfigError, match=r"layer 0\.0: expected a layer that computes tensors"):
        score([Of(lambda x: "text")])
