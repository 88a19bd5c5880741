"""A plain loop over one block of a teacher's students after the other, for any modules."""

from __future__ import annotations

import torch

from naspipe.streams.stream_file import read_stream
from tests.equivalence.harness import assert_same_bits, plain_torch
from tests.oracle import PlainLoop


def through(modules, state):
    """What the last module returns, always a tuple."""
    with torch.no_grad():
        for module in modules:
            found = module.eval()(*state)
            state = found if isinstance(found, tuple) else (found,)
    return state


def assert_blocks(found, teachers, data, *, seed, losses, lr, optimizer="SGD", options=None):
    """Every student block's bits are those of its own loop.

    ``losses`` are called with outputs, lessons and the target, which is empty where there is none.
    """
    for number, run in enumerate(found.blocks):
        with plain_torch():
            assert_same_bits(run, _loop(number, run, teachers, data, seed, losses[number],
                                        (optimizer, lr, options)))  # fmt: skip


def _loop(number, run, teachers, data, seed, loss, how):
    space = run.space
    chains = [space.chain(each) for each in read_stream(run.directory.stream)]
    oracle = None
    for step, chain in enumerate(chains):
        batch = data(seed, step)
        given = through(teachers[:number], (batch["input"],))
        lessons = through(teachers[number : number + 1], given)
        named = {f"given{place}": each for place, each in enumerate(given)}
        if oracle is None:
            fields = [space.fields(position) for position in range(len(space))]
            if number:
                fields[0] = [*named, *fields[0]]
            candidates = [block.candidates for block in space.blocks]
            oracle = PlainLoop(candidates, fields, {}, seed + number, *how)

        def learned(*outputs, lessons=lessons):
            *outputs, target = outputs
            return loss(outputs, lessons, target)

        oracle.step(step, chain, {"target": torch.empty(0), **batch, **named}, learned)
    return oracle
