"""Running statistics taken anew, whoever takes them, and whatever of them is used."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from naspipe.config.errors import ConfigError
from naspipe.evaluation.calibration import find_norms, fresh_statistics


class Outer(nn.Module):
    """Calls torch with the statistics of a norm inside, and asks its own mode."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(6)

    def forward(self, x):
        mean, var = self.norm.running_mean[:4], self.norm.running_var[:4]
        return functional.batch_norm(x, mean, var, training=self.training, momentum=0.1)


class Inner(Outer):
    """Asks the norm, and hands on its momentum."""

    def forward(self, x):
        mean, var = self.norm.running_mean[:4], self.norm.running_var[:4]
        training, momentum = self.norm.training, self.norm.momentum
        return functional.batch_norm(x, mean, var, None, None, training, momentum)


class Own(nn.Module):
    """Has buffers of its own, which it hands to torch's function by position."""

    def __init__(self):
        super().__init__()
        self.register_buffer("running_mean", torch.zeros(4))
        self.register_buffer("running_var", torch.ones(4))
        self.drop = nn.Dropout()

    def forward(self, x):
        x = torch.batch_norm(
            x, None, None, self.running_mean, self.running_var, self.training, 0.1, 1e-5, False
        )
        return self.drop(x)


class Whole(nn.Module):
    """Statistics are a part of a buffer that has others, too."""

    def __init__(self):
        super().__init__()
        self.register_buffer("running_mean", torch.zeros(2, 4))
        self.register_buffer("running_var", torch.ones(2, 4))

    def forward(self, x):
        for mean, var in zip(self.running_mean, self.running_var, strict=True):
            x = functional.batch_norm(x, mean, var, training=self.training, momentum=0.1) * 2 + 1
        return x


class Frozen(nn.BatchNorm1d):
    def train(self, mode=True):
        return super().train(False)


class Arithmetic(nn.Module):
    """Takes its statistics by itself; as torchvision's frozen norm, where it does not."""

    def __init__(self, takes):
        super().__init__()
        self.takes = takes
        self.register_buffer("running_mean", torch.zeros(4))
        self.register_buffer("running_var", torch.ones(4))

    def forward(self, x):
        if self.takes and self.training:
            self.running_mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
        return (x - self.running_mean) / (self.running_var + 1e-5).sqrt()


def batches():
    torch.manual_seed(4)
    return [2 + 3 * torch.randn(16, 4) for _ in range(3)]


def calibrated(module, given=None):
    """The statistics, and what the last batch comes to with them."""
    given = given or batches()
    module.eval()
    with torch.no_grad():
        norms = find_norms("mine", module, lambda: module(given[0]))
        with fresh_statistics("mine", module, norms) as fresh:
            for each in given:
                module(each)
            fresh.settle()
            buffers = {name: each.clone() for name, each in module.named_buffers()}
            return buffers, module(given[-1])


@pytest.mark.parametrize("make", [lambda: nn.BatchNorm1d(4), Outer, Inner, Own])
def test_each_norm_averages_over_all_batches_alike(make):
    module, given = make(), batches()
    before = {name: each.clone() for name, each in module.state_dict().items()}
    buffers, output = calibrated(module, given)
    mean = torch.stack([each.mean(0) for each in given]).mean(0)
    var = torch.stack([each.var(0) for each in given]).mean(0)
    (found,) = (each[:4] for name, each in buffers.items() if name.endswith("running_mean"))
    assert torch.allclose(found, mean, atol=1e-6)
    assert torch.allclose(output, (given[-1] - mean) / (var + 1e-5).sqrt(), atol=1e-5)
    assert all(torch.equal(each, before[name]) for name, each in module.state_dict().items())
    assert not any(part.training for part in module.modules())
    assert getattr(getattr(module, "norm", module), "momentum", 0.1) == 0.1


def test_the_same_bits_as_torchs_own_averages():
    own, plain = nn.BatchNorm1d(4), nn.BatchNorm1d(4, momentum=None)
    buffers, _ = calibrated(own)
    for each in batches():
        plain(each)
    assert all(torch.equal(buffers[name], each) for name, each in plain.named_buffers())


def test_instance_norms_are_taken_anew_too():
    norm = nn.InstanceNorm1d(4, track_running_stats=True)
    norm(torch.randn(2, 4, 9))
    given = [torch.randn(2, 4, 9) * 3 for _ in range(2)]
    buffers, _ = calibrated(norm, given)
    expected = torch.stack([each.mean((0, 2)) for each in given]).mean(0)
    assert torch.allclose(buffers["running_mean"], expected, atol=1e-6)


def test_parts_of_one_buffer_are_counted_apart():
    buffers, _ = calibrated(Whole())
    assert torch.allclose(buffers["running_mean"][1], torch.ones(4), atol=1e-5)


@pytest.mark.parametrize("make", [lambda: Frozen(4), lambda: Arithmetic(takes=False)])
def test_frozen_norms_keep_what_they_have(make):
    norm = make()
    norm.running_mean.fill_(5)
    buffers, _ = calibrated(norm)
    assert torch.equal(buffers["running_mean"], torch.full((4,), 5.0))


def test_statistics_of_other_arithmetic_are_refused():
    said = r"^layer mine: .* found running_mean of Arithmetic, .*; call those functions, or use "
    with pytest.raises(ConfigError, match=said):
        calibrated(Arithmetic(takes=True))


def test_a_norm_that_no_batch_goes_through_is_refused():
    """Its statistics were reset: it would be judged with mean 0 and variance 1."""

    class Sometimes(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(4)

        def forward(self, x):
            return self.norm(x) if self.training or x.sum() > 1e9 else x

    with pytest.raises(
        ConfigError, match=r"^layer mine: .* found none that goes through one Batch"
    ):
        calibrated(Sometimes())
