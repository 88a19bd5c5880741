"""Runs of real spaces on synthetic data, and what their access logs say; for measuring."""

from __future__ import annotations

import json
import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch

import naspipe
import search_spaces
from naspipe.checks.sketched import measure_sizes
from naspipe.config.blocks import Shared
from naspipe.config.recipe import Recipe
from naspipe.config.space import Space
from naspipe.jobs.workload import Workload
from naspipe.machine.forking import done_apart
from naspipe.profiling import profiles as profile_apart
from naspipe.store.access_log import read_run_accesses
from naspipe.store.metrics import makespan_seconds, summarize
from tests.equivalence.harness import oracle_of
from tests.gpu.verdicts import deterministic, plain_device

TEXT = {"tiny": (600, 2600), "small": (4096, 8200), "paper": (12288, 8200)}
"""Padded tokens of a batch, and the vocabulary: as of the real data at each scale."""

IMAGES = {"channels": 1, "height": 28, "width": 28, "classes": 10}


@dataclass(frozen=True)
class Tokens:
    """Random sentences, with the shapes of batches of real ones."""

    scale: str

    @property
    def info(self) -> dict[str, int]:
        """What a space wants to know."""
        return {"vocabulary": TEXT[self.scale][1], "padding": 1}

    def __call__(self, seed: int, sequence_id: int) -> dict[str, torch.Tensor]:
        """Source, previous and target, each (rows, length)."""
        tokens, words = TEXT[self.scale]
        draw = torch.Generator().manual_seed(seed * 1_000_003 + sequence_id)
        length = int(torch.randint(12, 48, (), generator=draw))
        rows = tokens // length
        shape = (rows, length)
        return {
            name: torch.randint(4, words, shape, generator=draw)
            for name in ("source", "previous", "target")
        }


@dataclass(frozen=True)
class Images:
    """Random images of Fashion-MNIST's shape."""

    rows: int

    def __call__(self, seed: int, sequence_id: int) -> dict[str, torch.Tensor]:
        """Input (rows, 1, 28, 28) and target (rows)."""
        draw = torch.Generator().manual_seed(seed * 1_000_003 + sequence_id)
        pixels = torch.randn(self.rows, 1, 28, 28, generator=draw)
        return {"input": pixels, "target": torch.randint(0, 10, (self.rows,), generator=draw)}


def synthetic(name: str, scale: str, optimizer: str | None = None) -> Workload:
    """A space of naspipe's with random data; plain SGD where it is asked for."""
    defaults = search_spaces.defaults(name, scale)
    data: Any
    if defaults.max_tokens is not None:
        data = Tokens(scale)
        space = search_spaces.build(name, scale, data.info)
    else:
        data = Images(defaults.batch_size or 32)
        space = search_spaces.build(name, scale, IMAGES)
    recipe = Recipe(optimizer=optimizer or defaults.optimizer, lr=1e-3)
    return Workload.of(space, data, defaults.loss(), recipe=recipe, steps=1)


def subnet_bytes(named: Workload) -> int:
    """Parameters and optimizer state of a subnet's choice blocks, on average over candidates."""
    sizes = measure_sizes(named)
    return sum(
        int(mean(sizes.of(index, k).state_bytes for k in range(len(block.candidates))))
        for index, block in enumerate(named.space.blocks)
        if not isinstance(block, Shared)
    )


class Subset:
    """A stream over some candidates: the first subnets use each once, the others any of them.

    Args:
        space: whose candidates.
        count: how many of each block's, evenly spread.
        steps: subnets in all, ``count`` of which make the layers.
    """

    def __init__(self, space: Space, count: int, steps: int) -> None:
        draw = random.Random(1)
        self.count = count
        self.rows = [
            [(y if y < count else draw.randrange(count)) * total // count
             for total in space.candidate_counts]
            for y in range(steps)
        ]  # fmt: skip


def timed_run(named: Workload, subset: Subset, execution: dict[str, Any]) -> dict[str, Any]:
    """One run; what its log says of the subnets after those that made the layers."""
    with tempfile.TemporaryDirectory(prefix="naspipe-run-") as scratch:
        stream = Path(scratch) / "stream.jsonl"
        stream.write_text("".join(json.dumps(row) + "\n" for row in subset.rows))
        start = time.monotonic()
        run = naspipe.train(
            named.space, named.data, named.loss, steps=len(subset.rows),
            optimizer=named.recipe.optimizer, lr=named.recipe.lr, sampler=f"file:{stream}",
            run_dir=Path(scratch) / "run", execution=execution,
        )  # fmt: skip
        seconds = time.monotonic() - start
        accesses = read_run_accesses(run.directory.path)
        manifest = run.manifest
    first = [access for access in accesses if access.sequence_id < subset.count]
    steady = [access for access in accesses if access.sequence_id >= subset.count]
    steps = len(subset.rows) - subset.count
    step_seconds = makespan_seconds(steady) / steps
    return {
        "steps": steps,
        "seconds_in_all": seconds,
        "first_use_seconds": makespan_seconds(first) / subset.count,
        "step_seconds": step_seconds,
        "subnets_per_hour": 3600 / step_seconds,
        "hit_rate": summarize(steady, 1).hit_rate,
        "stall_ratio": summarize(steady, 1).stall_ratio,
        "median_block_ms": median(a.end_ns - a.start_ns for a in steady) / 1e6,
        "budgets": manifest["execution"]["budgets"],
        "stages": manifest["measured"]["stages"],
    }


def plain_step_seconds(named: Workload, subset: Subset, device: str) -> float:
    """What a subnet takes in a plain loop, behind those that make the layers."""
    work = partial(_plain_loop, named, subset, plain_device(device))
    return done_apart(lambda _: {"seconds": work()}, "the plain loop")["seconds"]


def _plain_loop(named: Workload, subset: Subset, device: str) -> float:
    deterministic()
    recipe = named.recipe
    oracle = oracle_of(named.space, 0, recipe.optimizer, recipe.lr, device=device)
    start = 0.0
    for y, choices in enumerate(subset.rows):
        if y == subset.count:
            start = time.perf_counter()
        oracle.step(y, named.space.chain(choices), named.data(0, y), named.loss)
    return (time.perf_counter() - start) / (len(subset.rows) - subset.count)


def free_host_bytes() -> int:
    """Memory that programs may still take."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 8 << 30


@contextmanager
def shortened() -> Iterator[None]:
    """Profiles take less than they would: how well stages are balanced is not looked at here."""
    usual = profile_apart.profile
    profile_apart.profile = partial(usual, budget_seconds=0.5)
    try:
        yield
    finally:
        profile_apart.profile = usual
