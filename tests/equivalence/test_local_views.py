"""Views that the student alone sees: the bits of a plain loop whose teacher never sees them."""

from __future__ import annotations

from copy import deepcopy
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional

import naspipe as npp
from naspipe.config.errors import RunInterruptedError
from naspipe.config.ids import AccessKind
from naspipe.store.access_log import read_joint_accesses
from naspipe.store.compare import compare_runs
from naspipe.streams.stream_file import read_stream
from tests.equivalence import spaces
from tests.equivalence.harness import plain_torch, restless
from tests.equivalence.momentum_runs import differences
from tests.equivalence.plain_momentum import MomentumLoop
from tests.faults.helpers import Calm, Ends, interrupt
from tests.thinned import long

SEED, LR, STEPS = 3, 0.05, 6
VIEWS, LOCAL, BATCHES = 2, 3, 2
LESSONS, PASSES = VIEWS * BATCHES, (VIEWS + LOCAL) * BATCHES


def conv(a, b):
    return nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU())


class Pool(nn.Linear):
    """The mean over an image of any size, and a map of it."""

    def forward(self, x):
        return super().forward(x.mean((2, 3)))


FACTORIES = [
    partial(conv, 1, 6), partial(conv, 6, 8), partial(Pool, 8, 6), partial(nn.Linear, 6, 6)
]  # fmt: skip
"""Three blocks with a teacher, and a predictor."""


def noisy(images, draws, view):
    images = images.reshape(-1, 1, 4, 4)
    return images + (0.1 + 0.1 * view) * torch.randn(images.shape, generator=draws)


def small(images, draws, view):
    """A corner of 2 x 3."""
    return noisy(images, draws, view)[:, :, :2, :3]


def views(data=spaces.vectors):
    return npp.Views(
        data, noisy, views=VIEWS, batches=BATCHES, local=LOCAL, local_transform=small
    )  # fmt: skip


def teaches(number):
    """The global views are crossed; the local ones learn from them in turn."""
    return (number + BATCHES) % LESSONS if number < LESSONS else number % LESSONS


def by_pass(outputs, lessons):
    losses = []
    for number, output in enumerate(outputs):
        cosine = functional.cosine_similarity(output, lessons[teaches(number)], dim=-1)
        loss = (2 - 2 * cosine).mean()
        losses.append(loss.detach())
        (loss / len(outputs)).backward()
    return losses


class Dino:
    """Every view's scores learn those of the teacher for every other global view."""

    fields = ()
    needs_teacher = True

    def joined(self, outputs, lessons):
        assert len(outputs) == PASSES and len(lessons) == LESSONS
        losses = [
            -(taught.softmax(1) * output.log_softmax(1)).sum(1).mean()
            for m, output in enumerate(outputs)
            for n, taught in enumerate(lessons)
            if m != n and m % BATCHES == n % BATCHES
        ]
        return torch.stack(losses).mean()


def all_at_once(outputs, lessons):
    loss = Dino().joined(outputs, lessons)
    gradients = torch.autograd.grad(loss, outputs, retain_graph=True)
    for output, gradient in zip(outputs, gradients, strict=True):
        output.backward(gradient)
    return [loss.detach()] * len(outputs)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=LR, momentum=0.9)


def plain(lag, backward=by_pass, steps=STEPS):
    loop = MomentumLoop(FACTORIES, 3, SEED, sgd)
    with plain_torch():
        loop.train(steps, PASSES, views(), lambda step: 0.9, lag, backward, LESSONS)
    return loop


def train(path, stages, lag=1, loss=None, teacher=None, steps=STEPS, data=None, **more):
    blocks = [npp.Shared(f"block{n}", make) for n, make in enumerate(FACTORIES)]
    return npp.train(
        npp.Space("crops", blocks), data or views(), loss or npp.losses.BYOL(), steps=steps,
        seed=SEED, lr=LR, stages=stages, run_dir=path, optimizer_options={"momentum": 0.9},
        recipe={"passes": f"accumulate:{PASSES}", "norms": "deferred"},
        teacher=teacher or npp.Momentum(0.9, lag=lag, without=["block3"]), **more,
    )  # fmt: skip


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize(
    ("stages", "execution"),
    [
        long(1, {}),
        long(2, {}),
        (3, {"window": 64, "checkpoint_every": 2}),
        (2, {"order": "model-parallel"}),
        (2, {"memory_budget": "1x"}),
        (2, {"order": "critical-path", "recompute": True}),
    ],
)
def test_a_teacher_that_follows(tmp_path, monkeypatch, lag, stages, execution):
    restless(monkeypatch)
    run = train(tmp_path / "run", stages, lag, execution=execution)
    assert differences(run, plain(lag)) == []


@pytest.mark.parametrize("stages", [long(1), 2])
def test_one_loss_over_all_of_them(tmp_path, stages):
    run = train(tmp_path / "run", stages, loss=Dino())
    assert differences(run, plain(1, all_at_once)) == []


def network():
    torch.manual_seed(5)
    return nn.Sequential(*(make() for make in FACTORIES)).eval()


@pytest.mark.parametrize(("stages", "groups"), [long(1, 1), long(2, 1), (2, 2), (1, 3)])
def test_a_frozen_teacher(tmp_path, stages, groups):
    """Each global view learns from the teacher's output for the same one."""
    execution = {"groups": groups}
    run = train(tmp_path / "run", stages, teacher=npp.Teacher(network()), execution=execution)
    loop, lessons_of = MomentumLoop(FACTORIES, 0, SEED, sgd), deepcopy(network())

    def frozen(step):
        batches = [views()(SEED, step * PASSES + n) for n in range(LESSONS)]
        with torch.no_grad():
            return [lessons_of(batch["input"]) for batch in batches]

    taken = iter(range(STEPS))

    def own_view(outputs, _):
        lessons, losses = frozen(next(taken)), []
        for number, output in enumerate(outputs):
            cosine = functional.cosine_similarity(output, lessons[number % LESSONS], dim=-1)
            losses.append((2 - 2 * cosine).mean())
            (losses[-1] / len(outputs)).backward()
        return [loss.detach() for loss in losses]

    with plain_torch():
        loop.train(STEPS, PASSES, views(), lambda step: 1.0, 0, own_view, 0)
    names = differences(run, loop, of_teacher=False)
    assert names == []


@pytest.mark.parametrize("is_frozen", [False, True])
def test_the_teacher_reads_nothing_for_local_views(tmp_path, is_frozen):
    run = train(tmp_path / "run", 2, teacher=npp.Teacher(network()) if is_frozen else None)
    student, teacher = read_joint_accesses([run.directory.path, run.directory.path / "teacher"])
    seen = {each.sequence_id % PASSES for each in teacher}
    assert seen == set(range(LESSONS))
    forwards = [each for each in teacher if each.kind is AccessKind.FORWARD]
    assert len(forwards) == STEPS * LESSONS * (4 if is_frozen else 3)
    assert {each.sequence_id % PASSES for each in student} == set(range(PASSES))


def test_it_is_interrupted_and_goes_on(tmp_path):
    data = Ends(spaces.vectors, 9, interrupt, tmp_path / "marker")
    with pytest.raises(RunInterruptedError):
        train(tmp_path / "run", 2, data=views(data), steps=12, execution={"window": PASSES})
    run = train(tmp_path / "run", 3, data=views(Calm(spaces.vectors)), steps=12, resume=True)
    first = run.manifest["life"]["first"]
    assert 0 < first[0] == first[1] < 12 * PASSES
    assert differences(run, plain(1, steps=12)) == []


def test_groups_want_a_teacher_of_all_passes(tmp_path):
    with pytest.raises(npp.ConfigError, match="expected one group with a momentum teacher and"):
        train(tmp_path / "run", 1, execution={"groups": 2})
    assert not (tmp_path / "run").exists()


def test_a_supernet_wants_one_subnet_a_step(tmp_path):
    """Otherwise a layer might be used by local views alone."""
    blocks = [npp.Block([make, make]) for make in FACTORIES[:3]]
    with pytest.raises(npp.ConfigError, match="expected one subnet a step with local views"):
        npp.train(
            npp.Space("crops", blocks), views(), npp.losses.BYOL(), steps=2,
            recipe={"passes": f"subnets:{PASSES}", "norms": "deferred"},
            teacher=npp.Momentum(0.9), run_dir=tmp_path / "run",
        )  # fmt: skip
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("stages", [1, 2])
def test_a_supernet_of_one_subnet_a_step(tmp_path, stages):
    """On one stage and on two: the same, in both networks."""
    blocks = [npp.Block([make, make]) for make in FACTORIES[:3]]
    runs = [
        npp.train(
            npp.Space("crops", blocks), views(), npp.losses.BYOL(), steps=STEPS, stages=count,
            recipe={"passes": f"accumulate:{PASSES}", "norms": "deferred"},
            teacher=npp.Momentum(0.9), run_dir=tmp_path / f"{count}",
        )
        for count in (1, stages + 1)
    ]  # fmt: skip
    for place in ("", "teacher"):
        (found,) = compare_runs([run.directory.path / place for run in runs])
        assert found.is_identical, str(found)
    resumed = npp.Run(npp.Space("crops", blocks), tmp_path / "1/teacher")
    assert len(read_stream(resumed.directory.stream)) == STEPS * PASSES


def test_contrast_with_local_queries():
    """Those of local views have no keys of their own."""
    draws = torch.Generator().manual_seed(1)
    rows = [torch.randn(3, 5, generator=draws) for _ in range(PASSES + LESSONS)]
    outputs, lessons = rows[:PASSES], rows[PASSES:]
    found = npp.losses.Contrastive(local=LOCAL).joined(outputs, lessons)
    q, k = (
        [functional.normalize(torch.cat(own[i : i + BATCHES]), dim=-1)
         for i in range(0, len(own), BATCHES)]
        for own in (outputs, lessons)
    )  # fmt: skip
    expected = sum(
        0.4 * functional.cross_entropy(a @ b.T / 0.2, torch.arange(len(a)))
        for m, a in enumerate(q) for n, b in enumerate(k) if m != n
    )  # fmt: skip
    assert found.item() == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"local": -1}, "expected one view and one batch or more, found 2 and 1, and -1 local"),
        ({"local": 2, "batches": 3}, "expected passes=accumulate:12, for 2 views and 2 local"),
    ],
)
def test_numbers_that_do_not_fit(tmp_path, more, text):
    with pytest.raises(npp.ConfigError, match=text):
        train(tmp_path / "run", 1, data=npp.Views(spaces.vectors, noisy, **more))
    assert not (tmp_path / "run").exists()
