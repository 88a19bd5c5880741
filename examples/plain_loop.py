"""The plain loop: a run's losses again, by the rules of docs/reproducibility.md alone.

Run it: ``python examples/plain_loop.py``
"""

from __future__ import annotations

import copy
import math
from hashlib import blake2b
from zlib import crc32

import numpy as np
import torch
from digits_parts import Digits, space
from torch import nn

import naspipe as npp

SEED, BATCH, LAG, LR, WARMUP, MOMENTUM = 1, 64, 2, 0.05, 10, 0.9


def key(text):
    """Where random draws start."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def batch(dataset, number):
    """A batch of ``npp.from_dataset``."""
    epoch, place = divmod(number, math.ceil(len(dataset) / BATCH))
    order = np.random.RandomState([SEED, 0, epoch, 0]).permutation(len(dataset))
    items = []
    for row in order[place * BATCH : (place + 1) * BATCH]:
        torch.manual_seed(key(f"{SEED}/item/{number}/{row}"))
        items.append(dataset[row])
    return map(torch.stack, zip(*items, strict=True))


def rate(step, steps):
    """A cosine behind a warm-up."""
    if step < WARMUP:
        return LR * (step + 1) / WARMUP
    return LR * 0.5 * (1 + math.cos(math.pi * ((step - WARMUP) / (steps - WARMUP))))


def plain(steps):
    """The losses of one subnet after the other."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    dataset, blocks = Digits(), [each.candidates for each in space().blocks]
    choosing = range(1, len(blocks) - 1)  # between stem and head
    draws = [np.random.RandomState([crc32(b"uniform"), n, SEED]) for n in range(len(choosing))]
    layers, optimizers, stems, losses = {}, {}, [], []
    for step in range(steps):
        drawn = [draw.random_sample() for draw in draws]
        choices = [int(each * len(blocks[n])) for each, n in zip(drawn, choosing, strict=True)]
        chain = list(enumerate([0, *choices, 0]))
        for block, choice in chain:
            if (block, choice) not in layers:
                torch.manual_seed(key(f"{SEED}/layer/{block}/{choice}"))
                layers[block, choice] = layer = blocks[block][choice]()
                if list(layer.parameters()):
                    optimizers[block, choice] = torch.optim.SGD(layer.parameters(), LR, MOMENTUM)
        used = [layers[each] for each in chain]
        stems = stems or [copy.deepcopy(used[0])]
        late = used[0] = copy.deepcopy(stems[max(0, step - LAG)])  # the version of step - 1 - LAG
        state, target = batch(dataset, step)
        for block, module in enumerate(used):
            torch.manual_seed(key(f"{SEED}/{step}/{block}/0"))
            state = module(state.view_as(state))
        loss = nn.functional.cross_entropy(state, target)
        loss.backward()
        for newest, read in zip(layers[0, 0].parameters(), late.parameters(), strict=True):
            newest.grad = read.grad
        for each in chain:
            if each in optimizers:
                optimizers[each].param_groups[0]["lr"] = rate(step, steps)
                optimizers[each].step()
                optimizers[each].zero_grad()
        stems.append(copy.deepcopy(layers[0, 0]))
        losses.append(loss.item())
    return losses


def main(run_dir="runs/plain", steps=60, stages=2):
    """The run, and the losses of the plain loop."""
    run = npp.train(
        space(), npp.from_dataset(Digits(), batch_size=BATCH), nn.CrossEntropyLoss(), lr=LR,
        optimizer_options={"momentum": MOMENTUM}, schedule="cosine", warmup_steps=WARMUP,
        seed=SEED, steps=steps, stages=stages, run_dir=run_dir,
    )  # fmt: skip
    return run, plain(steps)


if __name__ == "__main__":
    run, losses = main()
    same = sum(one == other for one, other in zip(run.losses, losses, strict=True))
    print(f"{same} of {len(losses)} losses have the same bits")
