"""What the plain loops of these tests share: a subnet's modules, and one block after the other."""

from __future__ import annotations

import torch

from naspipe.streams.stream_file import read_stream
from tests.equivalence.harness import oracle_of, plain_torch
from tests.keyed_draws import keyed_seed


def modules_of(loop, y, chain):
    """The modules that subnet y reads: of lagging blocks an older version."""
    used = {}
    for block, candidate in enumerate(chain):
        newest = loop.layer(block, candidate)
        used[block, candidate] = loop.read(block, y) if block in loop.history else newest
    return used


def call(loop, y, block, module, state, batch):
    """One block: keyed draws, one alias per input, then the batch's fields."""
    torch.manual_seed(keyed_seed(f"{loop.seed}/{y}/{block}/0"))
    out = module(*(t.view_as(t) for t in state), *(batch[name] for name in loop.fields[block]))
    return out if isinstance(out, tuple) else (out,)


def train(run, data, step, *, seed, lr=0.05, options=None):
    """A plain loop over the stream that a run recorded; ``step(loop, y, chain, batch)``."""
    loop = oracle_of(run.space, seed, "SGD", lr, options)
    with plain_torch():
        for y, choices in enumerate(read_stream(run.directory.stream)):
            step(loop, y, run.space.chain(choices), data(seed, y))
    return loop
