"""Whoever reads docs/reproducibility.md alone can write the plain loop of every kind of run."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional

import naspipe as npp
from naspipe.elastic import Linear
from tests.equivalence import page_loops
from tests.equivalence.page_loop import differences, page, settings

SEED, LR = 3, 0.05


def data(seed, number):
    draws = torch.Generator().manual_seed(1000 * seed + number)
    target = torch.randint(4, (6,), generator=draws)
    return {"input": torch.randn(6, 8, generator=draws), "target": target}


def held_out(seed, number):
    return data(seed, 500 + number)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=LR, momentum=0.9)


def normed(a, b, width=8):
    return nn.Sequential(
        nn.Linear(a, width), nn.BatchNorm1d(width), nn.Dropout(0.1), nn.Linear(width, b)
    )


class Fork(nn.Module):
    """Reads its input twice, and hands it on."""

    def __init__(self, width):
        super().__init__()
        self.net = normed(8, 8, width)

    def forward(self, x):
        return x, self.net(x) + torch.sin(x)


class Join(Fork):
    """Reads both, the one that was handed on twice."""

    def forward(self, x, y):
        return self.net(y) * x + torch.cos(x)


@pytest.mark.parametrize(
    ("stages", "groups", "lag", "over"),
    [(1, 1, 2, 4), (2, 1, 2, 4), (1, 2, 2, 0), (1, 2, 2, 4)],
)
def test_a_supernet(tmp_path, stages, groups, lag, over):
    factories = [
        [partial(normed, 8, 8)],
        [partial(Fork, width) for width in (5, 7)],
        [partial(Join, width) for width in (5, 7)],
        [partial(nn.Linear, 8, 4)],
    ]
    rule = f"lag(0..{lag},over={over},predict)" if over else f"lag({lag},predict)"
    stem, head = npp.Shared("stem", *factories[0], rule=rule), npp.Shared("head", *factories[3])
    npp.train(
        npp.Space("page", [stem, *map(npp.Block, factories[1:3]), head]), data,
        nn.CrossEntropyLoss(), steps=9, seed=SEED, lr=LR, stages=stages, run_dir=tmp_path / "run",
        optimizer_options={"momentum": 0.9, "weight_decay": 0.01}, execution={"groups": groups},
        recipe={
            "passes": "accumulate:4", "norms": "deferred", "schedule": "cosine",
            "warmup_steps": 2, "clip_global_norm": 0.3, "ema": 0.9, "parameter_groups": [
                {"match": ["bias", "norm"], "weight_decay": 0.0},
                {"match": "head.*", "lr_factor": 0.5},
            ],
        },
    )  # fmt: skip
    with settings():
        loop = page_loops.supernet(
            factories, ["stem", "0", "1", "head"], SEED, data, 9, passes=4, lag=lag, over=over,
            lr=LR, warmup=2, clip=0.3, decay=0.9, momentum=0.9, decays=0.01,
        )  # fmt: skip
    assert differences(tmp_path / "run", loop) == []


class Contrast:
    """Every query finds its key among those of all passes."""

    fields = ()
    needs_teacher = True

    def joined(self, outputs, lessons):
        scores = torch.cat(list(outputs)) @ torch.cat(list(lessons)).T
        return functional.cross_entropy(scores, torch.arange(len(scores)))


class Cosine:
    """BYOL's."""

    fields = ()
    needs_teacher = True

    def distill(self, output, taught):
        return (2 - 2 * functional.cosine_similarity(output, taught, dim=-1)).mean()


def noisy(samples, draws, view):
    return samples + (0.1 + 0.2 * view) * torch.randn(samples.shape, generator=draws)


@pytest.mark.parametrize("loss", [Cosine(), Contrast()], ids=["by pass", "joined"])
@pytest.mark.parametrize("stages", [1, 2])
def test_a_momentum_teacher(tmp_path, stages, loss):
    factories = [partial(normed, 8, 8), partial(normed, 8, 4), partial(nn.Linear, 4, 4)]
    labels = ["encoder", "projector", "predictor"]
    blocks = [npp.Shared(*pair) for pair in zip(labels, factories, strict=True)]
    npp.train(
        npp.Space("page", blocks), npp.Views(data, noisy, views=2, batches=2), loss, steps=6,
        seed=SEED, lr=LR, stages=stages, run_dir=tmp_path / "run",
        optimizer_options={"momentum": 0.9}, teacher=npp.Momentum(0.8, 1.0, lag=1),
        recipe={"passes": "accumulate:4", "norms": "deferred"},
    )  # fmt: skip
    with settings():
        loops = page_loops.momentum_teacher(
            [[make] for make in factories], labels, SEED, data, noisy, 6, views=2, batches=2,
            without=1, tau=0.8, end=1.0, lag=1, make_optimizer=sgd, loss=loss,
        )  # fmt: skip
    assert differences(tmp_path / "run", loops[0]) == []
    loops[1].losses = []
    assert differences(tmp_path / "run/teacher", loops[1]) == []


@pytest.mark.parametrize("stages", [1, 2])
def test_blockwise_distillation(tmp_path, stages):
    torch.manual_seed(7)
    teachers = [nn.Sequential(nn.Linear(8, 6), nn.Dropout(0.5), nn.Tanh()), nn.Linear(6, 4)]
    students = [
        [[partial(normed, 8, 6, width) for width in (4, 6)]],
        [[partial(normed, 6, 6, width) for width in (4, 6)],
         [partial(normed, 6, 4, width) for width in (4, 6)]],
    ]  # fmt: skip
    spaces = [npp.Space(f"part{n}", map(npp.Block, each)) for n, each in enumerate(students)]
    npp.distill_blockwise(
        teachers, spaces, data, steps=8, stages=stages, seed=SEED, lr=LR, run_dir=tmp_path / "run",
        optimizer_options={"momentum": 0.9}, recipe={"schedule": "cosine"},
    )  # fmt: skip
    with settings():
        loops = page_loops.blockwise(
            teachers, students, SEED, data, 8, lr=LR, schedule="cosine", make_optimizer=sgd
        )
    for number, loop in enumerate(loops):
        assert differences(tmp_path / f"run/block-{number}", loop) == []


@pytest.mark.parametrize(
    ("kind", "passes"), [("sandwich", "sandwich:2"), ("users", "subnets:2:users")]
)
@pytest.mark.parametrize(("stages", "groups"), [(1, 1), (2, 1), (1, 2)])
def test_elastic_layers(tmp_path, kind, passes, stages, groups):
    wide, deep = {"width": [8, 3, 5]}, {"width": [8, 3, 5], "hidden": [2, 6]}
    factories = [
        [partial(Linear, 8, 8, outputs="width")],
        [partial(Two)],
        [partial(nn.Identity), partial(nn.Dropout, 0.2)],
        [partial(Linear, 8, 4, inputs="width")],
    ]
    names = ["stem", "middle", "0", "head"]
    elastic = [npp.Elastic(names[n], *factories[n], own) for n, own in ((0, wide), (1, deep))]
    blocks = [*elastic, npp.Block(factories[2]), npp.Elastic("head", *factories[3], wide)]
    run = npp.train(
        npp.Space("page", blocks), data, nn.CrossEntropyLoss(), steps=6, seed=SEED, lr=LR,
        stages=stages, run_dir=tmp_path / "run", optimizer="Adam",
        recipe={"passes": passes, "clip_layer_norm": 0.2}, execution={"groups": groups},
    )  # fmt: skip
    with settings():
        loop, stream = page_loops.elastic(
            factories, ["stem", "middle", "2", "head"], [wide, deep, {}, wide], SEED, data, 6,
            kind=kind, number=2, lr=LR, make_optimizer=partial(torch.optim.Adam, lr=LR), clip=0.2,
        )  # fmt: skip
    assert [list(choices) for choices in run.stream] == stream
    loop.labels = names
    assert differences(tmp_path / "run", loop) == []


class Two(nn.Module):
    """A hidden layer of a width of its own."""

    def __init__(self):
        super().__init__()
        self.one = Linear(8, 6, inputs="width", outputs="hidden")
        self.other = Linear(6, 8, inputs="hidden", outputs="width")

    def forward(self, x, width, hidden):
        return self.other(torch.relu(self.one(x, width=width, hidden=hidden)), width=width,
                          hidden=hidden)  # fmt: skip


@pytest.mark.parametrize("gates", ["full", "pair"])
@pytest.mark.parametrize("stages", [1, 2])
def test_mixed_edges(tmp_path, gates, stages):
    layers = [
        [partial(normed, 8, 8, width) for width in (4, 6, 8)],
        [partial(normed, 8, 8), nn.Identity],
        [partial(nn.Linear, 8, 4)],
    ]
    npp.train(
        npp.mixed.student("page", layers, gates=gates),
        npp.mixed.Rounds(data, held_out, every=3, start=2), nn.CrossEntropyLoss(), steps=14,
        seed=SEED, lr=LR, optimizer_options={"momentum": 0.9, "alpha_lr": 0.1}, stages=stages,
        run_dir=tmp_path / "run",
    )  # fmt: skip
    with settings():
        loop = page_loops.mixed_edges(
            layers, SEED, data, held_out, 14, every=3, start=2, lr=LR, alpha_lr=0.1,
            is_pair=gates == "pair", make_optimizer=sgd,
        )  # fmt: skip
    assert differences(tmp_path / "run", loop) == []


def test_a_loop_that_breaks_a_rule_is_seen(tmp_path, monkeypatch):
    """Statistics by the formula that is shown as another one."""

    @torch.no_grad()
    def other(module, found):
        for n, pair in zip(page.norms_of(module), found, strict=True):
            n.num_batches_tracked += 1
            for running, m in zip((n.running_mean, n.running_var), pair, strict=True):
                running.copy_(running * (1 - n.momentum) + m * n.momentum)

    monkeypatch.setattr(page, "fold", other)
    with pytest.raises(AssertionError, match="running_"):
        test_a_momentum_teacher(tmp_path, 1, Cosine())
