"""ValidationPlan subnets the plain way: whole subnets, batch by batch, on copies of the layers.

Uses nothing of naspipe but the modules of a space, and the oracle that trained them.
"""

from __future__ import annotations

import copy
import math

import torch
from torch import nn


def judge(loop, chain, calibration, validation, loss_fn):
    """Mean loss, top-1 and top-5 of a subnet with the weights that a plain loop left."""
    modules = [copy.deepcopy(loop.layer(*pair)).eval() for pair in enumerate(chain)]
    kinds = nn.BatchNorm1d | nn.BatchNorm2d
    norms = [each for m in modules for each in m.modules() if isinstance(each, kinds)]
    if calibration:
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None
            norm.train()
    sums = torch.zeros(4, dtype=torch.float64)
    with torch.no_grad():
        for batch in calibration:
            forward(loop, modules, batch)
        for norm in norms:
            norm.eval()
        for batch in validation:
            out = forward(loop, modules, batch)
            target = batch["target"].to(loop.device)
            order = out[0].argsort(dim=1, descending=True, stable=True)
            place = (order == target.unsqueeze(1)).nonzero()[:, 1]
            loss = loss_fn(*out, target).double()
            counts = [len(target), float((place < 1).sum()), float((place < 5).sum())]
            sums += torch.tensor([float(loss) * len(target), *counts], dtype=torch.float64)
    loss, count, top1, top5 = sums.tolist()
    return loss / count, top1 / count, top5 / count


def forward(loop, modules, batch):
    state = ()
    for block, module in enumerate(modules):
        out = module(*state, *(batch[name].to(loop.device) for name in loop.fields[block]))
        state = out if isinstance(out, tuple) else (out,)
    return state


def held_out(data):
    """Batches that the training never sees: those of another seed."""
    return lambda seed, number: data(seed + 77, number)


def same(one, other):
    """Bit for bit, for floats of Python."""
    return [math.copysign(1, x) * x for x in one] == [math.copysign(1, x) * x for x in other]
