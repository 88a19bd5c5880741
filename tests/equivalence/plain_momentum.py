"""The plain loop of a student and its momentum teacher, in one process; nothing of naspipe's."""

from __future__ import annotations

import copy
from collections import deque

import torch

from tests.keyed_draws import keyed_seed
from tests.oracle import PlainLoop


def forward(modules, x, key, seed, role=""):
    """Through a chain, each block under its own seed; returns the output and what norms saw."""
    found = []
    for block, module in enumerate(modules):
        torch.manual_seed(keyed_seed(f"{seed}/{key[0]}/{block}/{key[1]}{role}"))
        kept = PlainLoop.begin_statistics(module) if module.training else []
        x = module(x.view_as(x))
        found += [(block, place, m, v) for _, place, m, v in PlainLoop.end_statistics(module, kept)]
    return x, found


@torch.no_grad()
def fold(modules, statistics):
    for block, place, mean, var in statistics:
        norm = [*modules[block].modules()][place]
        norm.num_batches_tracked += 1
        norm.running_mean.mul_(1 - norm.momentum).add_(mean, alpha=norm.momentum)
        norm.running_var.mul_(1 - norm.momentum).add_(var, alpha=norm.momentum)


class MomentumLoop:
    """Student, teacher, and every loss.

    ``backward(outputs, lessons)`` computes the losses of one step from all its passes' outputs,
    runs their backwards, and returns one loss for each pass.
    """

    def __init__(
        self, factories, count, seed, optimizer, mode="train", buffers="own", device="cpu",
        clip_global_norm=0.0,
    ):  # fmt: skip
        self.student = []
        for block, make in enumerate(factories):
            torch.manual_seed(keyed_seed(f"{seed}/layer/{block}/0"))
            self.student.append(make().train().to(device))
        self.teacher = [copy.deepcopy(m).train(mode == "train") for m in self.student[:count]]
        for p in (p for module in self.teacher for p in module.parameters()):
            p.requires_grad_(False)
        each = [list(module.parameters()) for module in self.student]
        self.optimizers = [optimizer(parameters) if parameters else None for parameters in each]
        self.seed, self.mode, self.buffers, self.losses = seed, mode, buffers, []
        self.device = device
        self.clip_global_norm = clip_global_norm

    def train(self, steps, passes, data, tau, lag, backward, num_lessons=None):
        history = deque([copy.deepcopy(self.teacher)], maxlen=lag + 1)
        for step in range(steps):
            numbers = range(step * passes, (step + 1) * passes)
            views = [data(self.seed, n)["input"].to(self.device) for n in numbers]
            lessons, seen, own, outputs = [], [], [], []
            for number, view in enumerate(views[:num_lessons]):
                with torch.no_grad():
                    key = (step, number)
                    x, found = forward(history[0], view, key, self.seed, "/teacher")
                lessons.append(x)
                seen += found
            for number, view in enumerate(views):
                x, found = forward(self.student, view, (step, number), self.seed)
                outputs.append(x)
                own += found
            self.losses += backward(outputs, lessons)
            if self.clip_global_norm:
                PlainLoop.clip(self, self.student)
            for optimizer in filter(None, self.optimizers):
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            fold(self.student, own)
            self.follow(tau(step))
            fold(self.teacher, seen if self.buffers == "own" else [])
            history.append(copy.deepcopy(self.teacher))

    @torch.no_grad()
    def follow(self, tau):
        for mine, its in zip(self.teacher, self.student, strict=False):
            for p, q in zip(mine.parameters(), its.parameters(), strict=True):
                p.lerp_(q, 1 - tau)
            for b, c in zip(mine.buffers(), its.buffers(), strict=True):
                if self.buffers == "averaged" and b.is_floating_point():
                    b.lerp_(c, 1 - tau)
                elif self.buffers != "own":
                    b.copy_(c)
