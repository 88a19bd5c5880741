"""The settings under which torch leaves the same bits are there inside, and as before after."""

from __future__ import annotations

import pytest
import torch

from naspipe.machine.cuda import HostClock
from naspipe.machine.determinism import CUBLAS_WORKSPACE, deterministic_torch, seed_draws


def settings():
    return {
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "fill": torch.utils.deterministic.fill_uninitialized_memory,
        "benchmark": torch.backends.cudnn.benchmark,
        "cudnn deterministic": torch.backends.cudnn.deterministic,
        "cudnn tf32": torch.backends.cudnn.allow_tf32,
        "matmul tf32": torch.backends.cuda.matmul.allow_tf32,
        "threads": torch.get_num_threads(),
    }


@pytest.mark.parametrize("workspace", [None, ":16:8", "nonsense"])
def test_inside_and_after(monkeypatch, workspace):
    import os

    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", workspace or "")
    torch.backends.cudnn.benchmark = torch.backends.cudnn.allow_tf32 = True
    before, draws = settings(), torch.get_rng_state()
    with deterministic_torch(1):
        assert settings() == {
            "deterministic": True, "fill": False, "benchmark": False, "cudnn deterministic": True,
            "cudnn tf32": False, "matmul tf32": False, "threads": 1,
        }  # fmt: skip
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == CUBLAS_WORKSPACE
        seed_draws(3)
    torch.backends.cudnn.benchmark = False
    assert settings() == {**before, "benchmark": False}
    assert torch.equal(torch.get_rng_state(), draws)


PRECISIONS = ("cuda.matmul", "cudnn.conv", "cudnn.rnn")


def precisions():
    places = (torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn)
    return dict(zip(PRECISIONS, (each.fp32_precision for each in places), strict=True))


def set_precisions(**values):
    backends = torch.backends
    backends.cuda.matmul.fp32_precision = values["matmul"]
    backends.cudnn.conv.fp32_precision = values["conv"]
    backends.cudnn.rnn.fp32_precision = values["rnn"]


@pytest.fixture
def usual_precisions():
    before = precisions()
    yield
    set_precisions(**{name.split(".")[1]: value for name, value in before.items()})


@pytest.mark.parametrize("matmul", ["tf32", "ieee"])
@pytest.mark.parametrize("conv", ["tf32", "ieee"])
def test_the_newer_way_to_ask_for_tf32(usual_precisions, matmul, conv):
    """Beside it torch's older switches raise when they are read: that must end no run."""
    set_precisions(matmul=matmul, conv=conv, rnn="tf32")
    before = precisions()
    with deterministic_torch(1):
        assert set(precisions().values()) == {"ieee"}
        with deterministic_torch(1):
            assert set(precisions().values()) == {"ieee"}
    assert precisions() == before


def test_the_older_switches_turn_all_of_it_off(usual_precisions):
    """Off by the older switch of cuDNN, convolutions are still ``tf32`` by the newer one."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    before = precisions()
    with deterministic_torch(1):
        assert set(precisions().values()) == {"ieee"}
    assert torch.backends.cuda.matmul.allow_tf32
    assert precisions() == before
    torch.backends.cuda.matmul.allow_tf32 = False


def test_seeds_are_those_of_torch():
    torch.manual_seed(5)
    expected = torch.rand(4)
    seed_draws(5)
    assert torch.equal(torch.rand(4), expected)
    assert not torch.cuda.is_initialized()


def test_the_hosts_clock():
    clock = HostClock()
    marks = [clock.mark() for _ in range(3)]
    assert clock.between_ns(marks) == [marks[1] - marks[0], marks[2] - marks[1]]


def test_the_callers_autocast_is_left_outside():
    one = torch.ones(2, 2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with deterministic_torch(1):
            assert (one @ one).dtype is torch.float32
        assert (one @ one).dtype is torch.bfloat16
