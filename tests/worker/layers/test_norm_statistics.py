"""Statistics that are deferred are those of torch's forward, folded by the public formula."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from naspipe.config.errors import ConfigError
from naspipe.worker.layers.kept_state import collected, fold, other_buffers, unknown_norm


def inputs(seed, channels=5):
    return torch.randn(6, channels, 4, 4, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("momentum", [0.1, 1.0, None])
def test_one_pass_folded_is_nearly_torchs_own_forward(momentum):
    own, plain = (nn.BatchNorm2d(5, momentum=momentum) for _ in range(2))
    for seed in range(4):
        with collected(own) as found:
            out = own(inputs(seed))
        assert torch.equal(out, plain(inputs(seed)))
        fold(own, found)
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(own.state_dict()[name], value)


def test_the_statistics_are_the_batchs_own_and_the_module_keeps_its_own():
    norm = nn.BatchNorm2d(5)
    before = {name: value.clone() for name, value in norm.state_dict().items()}
    kept = norm.running_mean
    with collected(norm) as found:
        norm(inputs(0))
    assert norm.running_mean is kept and norm.momentum == 0.1
    assert all(torch.equal(before[name], value) for name, value in norm.state_dict().items())
    torch.testing.assert_close(found[".running_mean"], inputs(0).mean((0, 2, 3)))
    torch.testing.assert_close(found[".running_var"], inputs(0).var((0, 2, 3)))


def test_a_failed_forward_leaves_the_module_as_it_was():
    norm = nn.BatchNorm2d(5)
    kept = dict(norm._buffers)
    with pytest.raises(RuntimeError), collected(norm):
        norm(inputs(0, channels=3))
    assert all(norm._buffers[name] is value for name, value in kept.items())
    assert norm.momentum == 0.1


def test_a_norm_that_is_used_twice_cannot_be_deferred():
    norm = nn.BatchNorm2d(5)
    with pytest.raises(ConfigError, match=r"used once in a forward.*2 times"), collected(norm):
        norm(norm(inputs(0)))


def test_norms_that_are_not_trained_are_left_alone():
    module = nn.Sequential(nn.BatchNorm2d(5).eval(), nn.BatchNorm2d(5, track_running_stats=False))
    with collected(module) as found:
        module(inputs(0))
    assert found == {}


def test_what_is_known():
    assert unknown_norm(nn.Sequential(nn.BatchNorm1d(3), nn.LayerNorm(3))) is None
    odd = nn.Sequential(nn.InstanceNorm1d(3, track_running_stats=True))
    assert unknown_norm(odd) == "0 (InstanceNorm1d)"
    assert not other_buffers(nn.BatchNorm1d(3)) and not other_buffers(nn.Linear(3, 3))
    assert other_buffers(odd)
