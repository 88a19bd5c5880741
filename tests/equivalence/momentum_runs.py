"""A student and its momentum teacher: trained here, in the plain loop, and compared."""

from __future__ import annotations

import math
from functools import partial
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional

import naspipe as npp
from naspipe.store.checkpoints import read_checkpoint
from naspipe.worker.checkpoints.restored import from_raw
from tests.equivalence import spaces
from tests.equivalence.harness import plain_torch
from tests.equivalence.plain_momentum import MomentumLoop
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
        loss = functional.cross_entropy(a @ b.T / t, torch.arange(len(a), device=a.device))
        losses.append(2 * t * loss)
    loss = losses[0] + losses[1]
    gradients = torch.autograd.grad(loss, outputs, retain_graph=True)
    for output, gradient in zip(outputs, gradients, strict=True):  # in the order of the passes
        output.backward(gradient)
    return [loss.detach()] * len(outputs)


def train(
    path, stages=1, *, lag=1, batches=2, loss=None, steps=STEPS, data=None, space=None, **more
):
    momentum = {
        "tau": 0.9,
        "end": 1.0,
        "lag": lag,
        "without": ["block4" if space is None else space.labels[-1]],
        **more.pop("teacher", {}),
    }
    views = npp.Views(data or spaces.vectors, noisy, views=2, batches=batches)
    recipe = {"passes": f"accumulate:{2 * batches}", "norms": "deferred", **more.pop("recipe", {})}
    return npp.train(
        space or npp.Space("views", SPACE), views, loss or npp.losses.BYOL(), steps=steps,
        seed=SEED, lr=LR,
        stages=stages, run_dir=path, recipe=recipe, optimizer_options={"momentum": 0.9},
        teacher=npp.Momentum(momentum.pop("tau"), **momentum), **more,
    )  # fmt: skip


def plain(
    lag=1, batches=2, backward=by_pass, steps=STEPS, mode="train", buffers="own", device="cpu",
    clip=0.0,
):  # fmt: skip
    def optimizer(parameters):
        return torch.optim.SGD(parameters, lr=LR, momentum=0.9)

    def tau(step):
        return 1.0 - (1.0 - 0.9) * 0.5 * (1 + math.cos(math.pi * step / steps))

    views = npp.Views(spaces.vectors, noisy, views=2, batches=batches)
    loop = MomentumLoop(FACTORIES, 4, SEED, optimizer, mode, buffers, device, clip)
    with plain_torch():
        loop.train(steps, 2 * batches, views, tau, lag, backward)
    return loop


def differences(run, loop, of_teacher=True):
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
        *([(run.directory.path / "teacher", loop.teacher)] if of_teacher else []),
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
