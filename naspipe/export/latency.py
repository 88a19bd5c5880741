"""How long whole subnets take on this machine."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median

import torch

from naspipe.export.assembly import assemble
from naspipe.frontend.given.run import Run
from naspipe.runtime.devices.determinism import deterministic_torch
from naspipe.runtime.jobs.workload import Batches
from naspipe.search.search_directory import Candidate, Search

_ROUNDS = 5


def measure_top(
    run: Run, search: Search, candidates: Sequence[Candidate], data: Batches
) -> dict[int, float]:
    """Milliseconds of each subnet's forward on one batch, alone, kept in the search's manifest.

    The subnets take turns, so that a slow moment of the machine hits all alike; medians.
    """
    definition = run.manifest["definition"]
    batch = data(definition["seed"], 0)
    with deterministic_torch(definition["recipe"]["threads"]), torch.no_grad():
        chains = {each.sequence_id: assemble(run, each.choices) for each in candidates}
        samples: dict[int, list[float]] = {number: [] for number in chains}
        for _ in range(_ROUNDS + 1):
            for number, chain in chains.items():
                before = time.perf_counter()
                chain(batch)
                samples[number].append(1e3 * (time.perf_counter() - before))
    found = {number: median(times[1:]) for number, times in samples.items()}
    search.note(latency_ms={str(number): ms for number, ms in found.items()})
    return found
