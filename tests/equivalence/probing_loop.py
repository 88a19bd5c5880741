"""A plain loop that looks at several subnets before each step, and trains the best or worst."""

from __future__ import annotations

import copy
import math

import torch
from torch.nn import functional

from naspipe.streams.samplers import iterate_subnets
from naspipe.streams.stream_file import read_stream
from tests.equivalence.harness import oracle_of, plain_torch


def probing_loop(
    space, data, loss, run, *, probes, passes="one", seed=1, optimizer="SGD", lr=0.05,
    options=None, extremes=(), **recipe,
):  # fmt: skip
    """Train as AttentiveNAS has it, and check that the run had the same subnets.

    ``extremes`` are the choices of a sandwich's largest and smallest subnet.
    """
    oracle = oracle_of(space, seed, optimizer, lr, options, **recipe)
    stream = read_stream(run.directory.stream)
    with plain_torch():
        train_probed(oracle, space, data, loss, stream, probes, passes, seed, extremes)
    return oracle


def train_probed(
    oracle, space, data, loss, stream, probes, passes, seed, extremes=(), sampler="uniform"
):
    """Train an oracle; ``stream`` are the choices of every pass that a run recorded."""
    kind, number, average = (*passes.split(":"), "", "")[:3]
    draws = int(number) if kind in ("sandwich", "subnets") else 1
    count = {"one": 1, "accumulate": int(number or 1), "subnets": draws, "sandwich": draws + 2}[
        kind
    ]
    sign, each = {"best": -1, "worst": 1}[probes.split(":")[0]], int(probes.split(":")[1])
    drawn, subnets = iterate_subnets(sampler, space, seed), []
    for step in range(len(stream) // (count + draws * each)):

        def batch(n, step=step):
            return data(seed, step if kind == "sandwich" else step * count + n)

        kept = []
        for draw in range(draws):
            own = [next(drawn) for _ in range(each)]
            losses = []
            for place, choices in enumerate(own):
                at = draw * each + place - draws * each
                chosen = space.chain(choices)
                given = batch(draw if kind == "subnets" else 0)
                losses.append(probe(oracle, step, at, chosen, given, loss))
            subnets += own
            ranks = [(0, 0.0) if math.isnan(loss) else (1, sign * loss) for loss in losses]
            kept.append(own[ranks.index(max(ranks))])
        trained = [*extremes, *kept] if kind == "sandwich" else kept
        trained = trained * count if kind == "accumulate" else trained
        subnets += trained
        pairs = [(space.chain(each), batch(n)) for n, each in enumerate(trained)]
        how = {"distill": taught} if kind == "sandwich" else {}
        oracle.take(
            step, pairs, loss, averages_loss=kind == "accumulate" or average == "passes",
            averages_users=average == "users", **how,
        )  # fmt: skip
    assert stream == subnets


def taught(output, lesson):
    return functional.cross_entropy(output, lesson.softmax(1))


@torch.no_grad()
def probe(oracle, step, number, choices, batch, loss):
    """The loss of a subnet on a batch, by copies of its layers as this step reads them.

    A layer that nothing has trained is made for that, and forgotten.
    """
    modules, known = [], set(oracle.layers)
    for block, candidate in oracle.layers_of(choices):
        newest = oracle.layer(block, candidate)
        seen = oracle.read(block, step) if block in oracle.history else newest
        modules.append(copy.deepcopy(seen))
    for place in set(oracle.layers) - known:
        del oracle.layers[place], oracle.optimizers[place]
    calls = [oracle.call(m, b, choices[b]) for b, m in enumerate(modules)]
    _, value = oracle.forward(step, number, modules, batch, loss, calls)
    oracle.statistics.clear()
    oracle.losses.append(value.cpu().clone())
    return float(value)
