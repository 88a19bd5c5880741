"""A momentum teacher and its student: both networks' bits are those of a plain loop."""

from __future__ import annotations

import math
from functools import partial
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.nn import functional

import naspipe as npp
from naspipe.core.errors import RunInterruptedError
from naspipe.runtime.checkpoints.layer_bytes import from_raw
from naspipe.trace.access.log import read_run_accesses
from naspipe.trace.snapshots.snapshot import read_checkpoint
from tests.equivalence import spaces
from tests.equivalence.harness import plain_torch
from tests.equivalence.plain_momentum import MomentumLoop
from tests.faults.helpers import Calm, Ends, interrupt, kill
from tests.oracle import bits

SEED, LR, STEPS = 3, 0.05, 8


def widths(*sizes):
    def make(a, b):
        return nn.Sequential(nn.Linear(a, b), nn.BatchNorm1d(b), nn.Dropout(0.1), nn.ReLU())

    return [partial(make, *pair) for pair in pairwise(sizes)]


FACTORIES = [*widths(16, 24, 24, 20), lambda: nn.Linear(20, 8), lambda: nn.Linear(8, 8)]
"""Four blocks with a teacher, and a predictor."""

SPACE = [npp.Shared(f"block{n}", make) for n, make in enumerate(FACTORIES)]


def noisy(samples, draws, view):
    return samples + (0.1 + 0.1 * view) * torch.randn(samples.shape, generator=draws)


def by_pass(outputs, lessons):
    """BYOL: the views crossed, the losses of all passes averaged."""
    half, losses = len(outputs) // 2, []
    for number, output in enumerate(outputs):
        taught = lessons[(number + half) % len(lessons)]
        loss = (2 - 2 * functional.cosine_similarity(output, taught, dim=-1)).mean()
        losses.append(loss.detach())
        (loss / len(outputs)).backward()
    return losses


def joined(outputs, lessons):
    """MoCo-v3: one loss over all passes."""
    half, t, losses = len(outputs) // 2, 0.2, []
    q = [torch.cat(outputs[:half]), torch.cat(outputs[half:])]
    k = [torch.cat(lessons[:half]), torch.cat(lessons[half:])]
    for one, other in ((0, 1), (1, 0)):
        a, b = functional.normalize(q[one], dim=-1), functional.normalize(k[other], dim=-1)
        loss = functional.cross_entropy(a @ b.T / t, torch.arange(len(a)))
        losses.append(2 * t * loss)
    loss = losses[0] + losses[1]
    gradients = torch.autograd.grad(loss, outputs, retain_graph=True)
    for output, gradient in zip(outputs, gradients, strict=True):  # in the order of the passes
        output.backward(gradient)
    return [loss.detach()] * len(outputs)


def train(path, stages=1, *, lag=1, batches=2, loss=None, steps=STEPS, data=None, **more):
    momentum = {
        "tau": 0.9,
        "end": 1.0,
        "lag": lag,
        "without": ["block4"],
        **more.pop("teacher", {}),
    }
    views = npp.Views(data or spaces.vectors, noisy, views=2, batches=batches)
    recipe = {"passes": f"accumulate:{2 * batches}", "norms": "deferred", **more.pop("recipe", {})}
    return npp.train(
        npp.Space("views", SPACE), views, loss or npp.losses.BYOL(), steps=steps, seed=SEED, lr=LR,
        stages=stages, run_dir=path, recipe=recipe, optimizer_options={"momentum": 0.9},
        teacher=npp.Momentum(momentum.pop("tau"), **momentum), **more,
    )  # fmt: skip


def plain(lag=1, batches=2, backward=by_pass, steps=STEPS, mode="train", buffers="own"):
    def optimizer(parameters):
        return torch.optim.SGD(parameters, lr=LR, momentum=0.9)

    def tau(step):
        return 1.0 - (1.0 - 0.9) * 0.5 * (1 + math.cos(math.pi * step / steps))

    views = npp.Views(spaces.vectors, noisy, views=2, batches=batches)
    loop = MomentumLoop(FACTORIES, 4, SEED, optimizer, mode, buffers)
    with plain_torch():
        loop.train(steps, 2 * batches, views, tau, lag, backward)
    return loop


def differences(run, loop):
    """Names of everything that has other bits than in the loop."""
    found = [int(loss.bits, 16) for loss in run.directory.read_losses()]
    expected = [int.from_bytes(bits(loss)[2], "little") for loss in loop.losses]
    wrong = [
        f"loss {y}"
        for y, pair in enumerate(zip(found, expected, strict=True))
        if pair[0] != pair[1]
    ]
    for folder, modules in (
        (run.directory.path, loop.student),
        (run.directory.path / "teacher", loop.teacher),
    ):
        checkpoint = read_checkpoint(folder / "checkpoints/final")
        ours = {
            name: bits(from_raw(raw))
            for name, raw in checkpoint.tensors.items()
            if "/version/" not in name
        }
        theirs = {}
        for block, module in enumerate(modules):
            for name, p in module.named_parameters():
                theirs[f"0/block{block}/param/{name}"] = bits(p)
                if modules is loop.student:
                    state = loop.optimizers[block].state[p]["momentum_buffer"]
                    theirs[f"0/block{block}/optimizer/{name}/momentum_buffer"] = bits(state)
            for name, b in module.named_buffers():
                theirs[f"0/block{block}/buffer/{name}"] = bits(b)
        assert sorted(ours) == sorted(theirs)
        wrong += [f"{folder.name}/{name}" for name in theirs if ours[name] != theirs[name]]
    return wrong


@pytest.mark.parametrize("lag", [0, 1, 2])
@pytest.mark.parametrize("stages", [1, 2, 4])
def test_byol(tmp_path, lag, stages):
    run = train(tmp_path / "run", stages, lag=lag)
    assert differences(run, plain(lag)) == []


@pytest.mark.parametrize(("stages", "lag", "batches"), [(1, 0, 1), (2, 1, 2), (4, 2, 1)])
def test_one_loss_over_all_passes(tmp_path, stages, lag, batches):
    loss = npp.losses.Contrastive()
    run = train(tmp_path / "run", stages, lag=lag, batches=batches, loss=loss)
    assert differences(run, plain(lag, batches, joined)) == []


@pytest.mark.parametrize(
    ("stages", "execution"),
    [
        (2, {"recompute": True}),
        (2, {"window": 4, "checkpoint_every": 2}),
        (1, {"groups": 2}),
        (2, {"groups": 2}),
        (1, {"groups": 4}),
        (2, {"memory_budget": "1x"}),
        (1, {"memory_budget": "2x"}),
    ],
)
def test_however_it_is_carried_out(tmp_path, stages, execution):
    run = train(tmp_path / "run", stages, execution=execution)
    assert differences(run, plain()) == []


@pytest.mark.parametrize("execution", [{}, {"groups": 2}])
def test_one_loss_on_groups(tmp_path, execution):
    run = train(tmp_path / "run", 2, loss=npp.losses.Contrastive(), execution=execution)
    assert differences(run, plain(backward=joined)) == []


@pytest.mark.parametrize("buffers", ["own", "copied", "averaged"])
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_norms_of_the_teacher(tmp_path, mode, buffers):
    run = train(tmp_path / "run", 2, teacher={"mode": mode, "buffers": buffers})
    assert differences(run, plain(mode=mode, buffers=buffers)) == []


def test_the_log_shows_what_was_read(tmp_path):
    """Step y reads the version of step y - 2."""
    run = train(tmp_path / "run", 2, lag=1)
    teacher = read_run_accesses(run.directory.path / "teacher")
    reads = {(a.layer, a.sequence_id): a.version for a in teacher if a.kind.name == "FORWARD"}
    assert len(reads) == 4 * 4 * STEPS
    for (_, number), version in reads.items():
        step = number // 4
        assert version == (-1 if step < 2 else 4 * (step - 1) - 1)


def test_steps_differ_from_the_second_on(tmp_path):
    now, older = (train(tmp_path / f"{lag}", lag=lag).losses for lag in (0, 1))
    assert now[:4] == older[:4]
    assert now[4:8] != older[4:8]


def test_it_is_interrupted_and_goes_on(tmp_path):
    data = Ends(spaces.vectors, 9, interrupt, tmp_path / "marker")
    with pytest.raises(RunInterruptedError):
        train(tmp_path / "run", 2, lag=2, data=data, steps=20, execution={"window": 8})
    run = train(tmp_path / "run", 3, lag=2, data=Calm(spaces.vectors), steps=20, resume=True)
    assert 0 < run.manifest["life"]["first"][0] == run.manifest["life"]["first"][1] < 80
    assert differences(run, plain(2, steps=20)) == []


def test_a_stage_is_killed(tmp_path):
    data = Ends(spaces.vectors, 17, kill, tmp_path / "marker")
    execution = {"checkpoint_every": 2, "max_restarts": 1}
    run = train(tmp_path / "run", 2, lag=1, data=data, steps=14, execution=execution)
    assert run.manifest["life"]["generation"] == 1
    assert differences(run, plain(1, steps=14)) == []


class Turned(nn.Module):
    """Parameters of one shape under two names, made in either order."""

    def __init__(self, names):
        super().__init__()
        for name in names:
            self.register_parameter(name, nn.Parameter(torch.full((16,), float(names.index(name)))))

    def forward(self, x):
        return x * self.one + self.other


def test_layers_pair_by_name(tmp_path):
    space = npp.Space("turned", [npp.Shared("a", lambda: Turned(["one", "other"]))])
    teacher = npp.Momentum(0.0, lag=0, network=[Turned(["other", "one"])])
    run = npp.train(
        space, spaces.vectors, npp.losses.BYOL(), steps=2, lr=0.1, teacher=teacher,
        run_dir=tmp_path / "run",
    )  # fmt: skip
    taught = npp.Run(run.space, tmp_path / "run/teacher").shared("a")
    for name, value in run.shared("a").named_parameters():
        assert torch.equal(value, taught.get_parameter(name))


def swapped(layer, source, update, tau):
    pairs = zip(layer.parameters.values(), reversed(source.parameters.values()), strict=True)
    for mine, its in pairs:
        mine.data.lerp_(its.data.reshape(mine.shape) if mine.shape == its.shape else mine, 1 - tau)


@pytest.mark.parametrize("broken", ["pairs", "rate", "buffers"])
def test_a_broken_rule_is_seen(tmp_path, monkeypatch, broken):
    from naspipe.runtime.blocks import updates
    from naspipe.teaching.momentum_update import MomentumUpdate

    if broken == "pairs":
        monkeypatch.setattr(updates, "follow", swapped)
    elif broken == "rate":
        counted = iter(range(1000))
        rate = MomentumUpdate.rate
        monkeypatch.setattr(MomentumUpdate, "rate", lambda self, _, n: rate(self, next(counted), n))
    else:
        monkeypatch.setattr(updates, "fold", lambda module, statistics: None)
    assert differences(train(tmp_path / "run"), plain())


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: npp.Momentum(1.5), "expected tau from 0 to 1, found 1.5"),
        (lambda: npp.Momentum(0.9, -0.1), "expected end from 0 to 1, found -0.1"),
        (lambda: npp.Momentum(0.9, lag=-1), "lag of 0 steps or more, found -1"),
        (lambda: npp.Momentum(0.9, mode="half"), "mode to be train or eval, found 'half'"),
        (lambda: npp.Momentum(0.9, buffers="none"), "buffers to be own or copied or averaged"),
    ],
)
def test_no_momentum(make, text):
    with pytest.raises(npp.ConfigError, match=text):
        make()


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"recipe": {"norms": "ordered"}}, "expected norms=deferred"),
        ({"recipe": {"passes": "accumulate:3"}}, "expected passes=accumulate:4, for 2 views"),
        ({"teacher": {"without": ["block0"]}}, "expected the last blocks"),
        ({"teacher": {"network": [nn.Linear(16, 3)]}}, "a network of 4 modules"),
        ({"policy": "bsp"}, "expected the policy csp"),
        ({"loss": npp.losses.Contrastive(), "recipe": {"passes": "subnets:4"}}, "a joined loss"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(tmp_path, more, text):
    with pytest.raises(npp.ConfigError, match=text) as caught:
        train(tmp_path / "run", **more)
    assert "\n" not in str(caught.value) and not (tmp_path / "run").exists()
