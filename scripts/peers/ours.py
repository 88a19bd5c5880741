"""naspipe, and the plain loop that defines its bits."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch

import naspipe
from naspipe.store.access_log import read_run_accesses
from naspipe.store.metrics import summarize
from scripts.peers.work import SEED, Work, figures, scratch, written_stream
from tests.equivalence.harness import oracle_of


def plain(work: Work, threads: int) -> dict[str, Any]:
    """The loop of the tests: ordinary autograd, one optimizer per layer."""
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True)
    named = work.named()
    recipe = named.recipe
    loop = oracle_of(named.space, SEED, recipe.optimizer, recipe.lr, recipe.optimizer_options)
    stream = work.stream(named)
    start = time.perf_counter()
    for step, batches in enumerate(work.batches(named)):
        first = step * work.passes
        chains = [named.space.chain(each) for each in stream[first : first + work.passes]]
        passes = list(zip(chains, batches, strict=True))
        loop.take(step, passes, named.loss, averages_loss=True)
    seconds = time.perf_counter() - start
    return figures(work.steps, seconds, [float(loss) for loss in loop.losses])


def piped(
    work: Work, stages: int, groups: int = 1, *, backward: str = "whole", **how: Any
) -> dict[str, Any]:
    """A run of naspipe, timed from its first access to its last.

    Steps of several passes have a subnet each, and their losses are averaged. Statistics of batch
    normalisation are deferred on several groups, as otherwise the passes go one by one.
    """
    named = work.named()
    recipe = named.recipe
    with scratch() as directory:
        run = naspipe.train(
            named.space,
            named.data,
            named.loss,
            steps=work.steps // work.passes,
            optimizer=recipe.optimizer,
            lr=recipe.lr,
            optimizer_options=recipe.optimizer_options,
            sampler=written_stream(work, named, Path(directory)),
            seed=SEED,
            stages=stages,
            recipe={
                "passes": "one" if work.passes == 1 else f"subnets:{work.passes}:passes",
                "norms": "ordered" if groups == 1 else "deferred",
            },
            execution={
                "groups": groups,
                "window": max(64, 8 * work.passes),
                "backward": backward,
            },
            run_dir=Path(directory) / "run",
            **how,
        )
        summary = summarize(read_run_accesses(run.directory.path), stages * groups)
        return figures(work.steps, summary.seconds, run.losses)
