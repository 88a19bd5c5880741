"""Runs that verify themselves: what they report, and that they stop at deliberate faults."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

import naspipe as npp
from naspipe.config.errors import VerificationError
from naspipe.config.execution import VerifySettings
from naspipe.config.rules import Lag, MomentumUpdate
from naspipe.store.checkpoints import cut_name
from naspipe.verification import verifier
from naspipe.worker.blocks import compute, updates
from naspipe.worker.blocks import compute as averaging
from naspipe.worker.blocks import ports as sums
from naspipe.worker.layers import joint_steps, own_steps
from naspipe.worker.layers.stored_layer import StoredLayer
from tests.equivalence import spaces
from tests.faults.helpers import Calm, Ends, fail

LOSS = nn.CrossEntropyLoss()
STEPS = VerifySettings.steps
"""The setting as users have it: the suite's default is not to verify."""
ADAMW = {"recipe": {"optimizer": "AdamW"}, "optimizer_options": {}}


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Other tests may take the machine meanwhile, and the plain loop has a low priority."""
    monkeypatch.setattr(verifier, "LEAST_SECONDS", 60.0)
    monkeypatch.setattr(VerifySettings, "steps", STEPS)


def train(path, *, verify="auto", steps=10, front=None, stages=1, data=spaces.vectors, **more):
    """A space with dropout, batch and layer normalisation, and a stem that lags."""
    more = {"optimizer_options": {"momentum": 0.9}, **more}
    return npp.train(
        spaces.mixed(front=front), data, LOSS, steps=steps, seed=1, lr=0.05, run_dir=path,
        stages=stages, verify=verify, **more,
    )  # fmt: skip


def is_plain_loop():
    return multiprocessing.current_process().name == "naspipe-verify"


class Follows:
    """A loss that learns a momentum teacher's output."""

    fields = ()
    needs_teacher = True

    def distill(self, output, taught):
        return (output - taught).square().mean()


def train_followed(path, **more):
    blocks = [lambda: nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.5)), lambda: nn.Linear(16, 8)]
    space = npp.chain([make() for make in blocks])
    return npp.train(
        space, spaces.vectors, Follows(), steps=8, seed=1, lr=0.1, run_dir=path, verify="auto",
        teacher=npp.Momentum(0.5, lag=0, **more), progress=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("stages", "more"),
    [
        (1, {}),
        (2, {"passes": "accumulate:2", "groups": 2}),
        (3, {"recompute": True, "memory_budget": "1x"}),
    ],
)
def test_a_run_says_how_many_steps_are_verified(tmp_path, capfd, stages, more):
    run = train(tmp_path / "run", stages=stages, progress=False, **more)
    assert run.manifest["verified"] == {"steps": 4}
    assert "verified: 4 steps, 0 bits differ" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("lag", "steps", "verified"),
    [
        (0, 1000, 4), (8, 1000, 11), (8, 176, 11), (8, 100, 6), (8, 20, 4), (0, 3, 3),
    ],
)  # fmt: skip
def test_auto_takes_three_steps_more_than_the_lag_but_a_sixteenth_at_most(lag, steps, verified):
    assert STEPS(VerifySettings(), lag, steps) == verified


def test_a_number_of_steps_and_none(tmp_path):
    assert train(tmp_path / "two", verify="2").manifest["verified"] == {"steps": 2}
    assert train(tmp_path / "all", verify="50").manifest["verified"] == {"steps": 10}
    assert "verified" not in train(tmp_path / "none", verify="0").manifest
    assert train(tmp_path / "each", verify="all").manifest["verified"] == {"steps": 10}
    with pytest.raises(npp.ConfigError, match="verify: expected auto, all or a number of steps"):
        train(tmp_path / "bad", verify="some")


@pytest.mark.parametrize(
    ("stages", "more"),
    [
        (1, {}),
        (2, {"front": npp.Lag(2, over=6, predicts=True)}),
        (2, {"passes": "accumulate:2", "front": npp.Every(3), "recipe": {"ema": 0.9}}),
        (1, ADAMW | {"front": npp.Lag(2, predicts=True)}),
    ],
    ids=["lag", "growing", "every", "adamw"],
)
def test_an_attempt_that_goes_on_is_verified_from_its_checkpoint(tmp_path, stages, more):
    last = 8 * (2 if "passes" in more else 1)
    data = Ends(spaces.vectors, last, fail, tmp_path / "marker")
    with pytest.raises(npp.NaspipeError, match="injected"):
        train(
            tmp_path / "run", data=data, checkpoint_every=2, window=2, verify="0", stages=stages,
            **more,
        )  # fmt: skip
    data = Calm(spaces.vectors)
    run = train(tmp_path / "run", data=data, resume=True, verify="3", stages=stages, **more)
    found = run.manifest["verified"]
    assert found["steps"] == 3 and found["first"] in (2, 4, 6), found


def test_a_fault_after_a_checkpoint_stops_the_run(tmp_path, monkeypatch):
    data = Ends(spaces.vectors, 8, fail, tmp_path / "marker")
    with pytest.raises(npp.NaspipeError, match="injected"):
        train(tmp_path / "run", data=data, checkpoint_every=2, window=2, verify="0")
    dropped_gradient(monkeypatch)
    with pytest.raises(VerificationError, match=r"layer .* after step [46] differs"):
        train(tmp_path / "run", data=Calm(spaces.vectors), resume=True)


class Told:
    """A strategy whose proposals depend on what it was told."""

    def __init__(self):
        self.score = 0.0

    def propose(self, sequence_id):
        return [int(abs(self.score) * 1e4 + block) % 4 for block in range(6)]

    def observe(self, sequence_id, score):
        self.score += score


@pytest.mark.parametrize(
    "more", [{"sampler": Told()}, {"probes": "best:2"}], ids=["strategy", "probes"]
)
@pytest.mark.parametrize("stages", [1, 2])
def test_subnets_that_losses_choose_are_verified(tmp_path, stages, more):
    run = train(tmp_path / "run", stages=stages, **more)
    assert run.manifest["verified"] == {"steps": 4}


def test_a_failed_run_leaves_the_checkpoint_that_waited_for_the_comparison(tmp_path, monkeypatch):
    """The data fail while the plain loop is still in its first steps."""

    def slowly(seed, number):
        if is_plain_loop():
            time.sleep(0.2)
        elif number == 8:
            raise RuntimeError("injected")
        return spaces.vectors(seed, number)

    with pytest.raises(npp.NaspipeError, match="injected"):
        train(tmp_path / "run", data=slowly, checkpoint_every=2)
    assert list((tmp_path / "run/checkpoints").glob("*/manifest.json"))


def test_what_the_plain_loop_does_not_cover_is_said(tmp_path):
    run = train(tmp_path / "run", stages=2, policy="asp")
    assert run.manifest["verified"]["steps"] == 0
    assert "policy=asp" in run.manifest["verified"]["because"]


def test_a_slow_plain_loop_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(verifier, "LEAST_SECONDS", 0.2)

    def slowly(seed, number):
        if is_plain_loop():
            time.sleep(5)
        return spaces.vectors(seed, number)

    start = time.monotonic()
    run = train(tmp_path / "run", data=slowly)
    assert run.manifest["verified"]["because"] == "because the plain loop took too long"
    assert time.monotonic() - start < 5


def test_a_plain_loop_that_is_killed_leaves_the_run_alone(tmp_path):
    """As the kernel does when memory runs short: it takes this process first."""

    def data(seed, number):
        if is_plain_loop():
            assert Path("/proc/self/oom_score_adj").read_text() == "1000\n"
            os.kill(os.getpid(), signal.SIGKILL)
        return spaces.vectors(seed, number)

    run = train(tmp_path / "run", data=data)
    because = run.manifest["verified"]["because"]
    assert because.startswith("because of the plain loop: ") and "SIGKILL" in because


def test_no_checkpoint_is_published_before_a_difference_is_seen(tmp_path, monkeypatch):
    """The fault shows in the last step that is compared; checkpoints come at every step."""
    write, count = StoredLayer.write, iter(range(1000))

    def late(self, gradients, version, *rest, **more):
        if version == 3 and next(count) == 0:
            gradients = {name: -value for name, value in gradients.items()}
        return write(self, gradients, version, *rest, **more)

    monkeypatch.setattr(StoredLayer, "write", late)
    with pytest.raises(VerificationError, match="after step 3"):
        train(tmp_path / "run", checkpoint_every=1)
    published = [path.parent.name for path in tmp_path.glob("run/checkpoints/*/manifest.json")]
    assert all(name < cut_name(4) for name in published), "those of equal steps may be there"


def dropped_gradient(patch):
    write = StoredLayer.write

    def without_one(self, gradients, *rest, **more):
        kept = dict(list(gradients.items())[1:])
        return write(self, kept if len(gradients) > 2 else gradients, *rest, **more)

    patch.setattr(StoredLayer, "write", without_one)


def wrong_version(patch):
    read = Lag.last_read
    patch.setattr(Lag, "last_read", lambda rule, step: min(read(rule, step) + 1, step - 1))


def double_fold(patch):
    fold = updates.fold

    def twice(module, statistics):
        fold(module, statistics)
        fold(module, statistics)

    patch.setattr(updates, "fold", twice)


def stale_buffer(patch):
    forward = _BatchNorm.forward

    def without_statistics(self, x):
        if is_plain_loop():
            return forward(self, x)
        kept = [buffer.clone() for buffer in self.buffers()]
        found = forward(self, x)
        for buffer, before in zip(self.buffers(), kept, strict=True):
            buffer.data.copy_(before)
        return found

    patch.setattr(_BatchNorm, "forward", without_statistics)


def unkeyed_draw(patch):
    patch.setattr(compute, "block_seed", lambda seed, step, *rest: 7)


def early_update(patch):
    """The rate of the next step."""
    rate = updates.learning_rate
    patch.setattr(updates, "learning_rate", lambda recipe, y, steps: rate(recipe, y + 1, steps))


def lost_parameter_group(patch):
    set_rates = own_steps.set_rates

    def alike(optimizer, own, lr):
        set_rates(optimizer, own, lr)
        for group in optimizer.param_groups:
            group["lr"] = lr

    patch.setattr(own_steps, "set_rates", alike)
    patch.setattr(joint_steps, "set_rates", alike)


def changed_order_of_a_fold(patch):
    """The sum of the passes' gradients, the last pass first."""
    total = sums.Fold.total

    def add(self, number, gradients):
        self._kept = [*getattr(self, "_kept", []), gradients]

    def backwards(self):
        for gradients in reversed(self._kept):
            kept = {name: value.clone() for name, value in gradients.items()}
            self._sum = kept if self._sum is None else sums._plus(self._sum, kept)
        return total(self)

    patch.setattr(sums.Fold, "add", add)
    patch.setattr(sums.Fold, "total", backwards)


def wrong_average(patch):
    patch.setattr(averaging.Averaging, "part", lambda self, gradient, number: gradient)


BAD = {
    dropped_gradient: {},
    wrong_version: {"front": npp.Lag(1)},
    double_fold: {"recipe": {"norms": "deferred"}, "steps": 12},
    stale_buffer: {"steps": 12},
    unkeyed_draw: {},
    early_update: {"recipe": {"schedule": "linear"}},
    lost_parameter_group: {"recipe": {"parameter_groups": [{"match": "bias", "lr_factor": 0.5}]}},
    wrong_average: {"passes": "accumulate:2"},
    changed_order_of_a_fold: {"passes": "accumulate:4"},
}


@pytest.mark.parametrize("broken", BAD, ids=lambda broken: broken.__name__)
def test_a_deliberate_fault_stops_the_run(tmp_path, monkeypatch, broken):
    """Within the first steps, and for its own reason: a tensor or a loss is named."""
    broken(monkeypatch)
    with pytest.raises(VerificationError, match=r"(layer|loss) .* differs from the plain loop"):
        train(tmp_path / "run", **BAD[broken])


def teacher_in_the_wrong_mode(patch):
    forward = compute.forward_only
    patch.setattr(compute, "forward_only", lambda *given: forward(*given[:3]))


def teacher_that_moves_late(patch):
    rate = MomentumUpdate.rate
    patch.setattr(MomentumUpdate, "rate", lambda self, y, steps: 0.5 * rate(self, y, steps))


@pytest.mark.parametrize(
    "broken", [teacher_in_the_wrong_mode, teacher_that_moves_late], ids=lambda b: b.__name__
)
def test_a_deliberate_fault_of_a_teacher_stops_the_run(tmp_path, monkeypatch, broken):
    broken(monkeypatch)
    with pytest.raises(VerificationError, match="differs from the plain loop"):
        train_followed(tmp_path / "run")


def test_a_teacher_is_verified(tmp_path):
    assert train_followed(tmp_path / "run").manifest["verified"] == {"steps": 4}
