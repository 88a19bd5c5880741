"""Peers on torch.distributed: two processes that gloo connects over the loopback interface.

Started twice by :func:`run_ranks`, as ``two_ranks.py KIND RANK STORE WORK``.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import Tensor, nn  # noqa: E402

from naspipe.jobs.workload import Workload  # noqa: E402
from scripts.peers.work import (  # noqa: E402
    SEED,
    Supernet,
    Work,
    figures,
    made,
    optimizer_of,
    scratch,
)

RANKS = 2
MICRO_BATCHES = 4
TIMEOUT_SECONDS = 3600


def run_ranks(kind: str, work: Work, **options: Any) -> dict[str, Any]:
    """Start both ranks, wait, and return what the last one reports.

    Raises:
        RuntimeError: when a rank fails; both are ended first.
    """
    with scratch() as directory:
        text = json.dumps({**asdict(work), **options})
        processes = [
            subprocess.Popen(
                [sys.executable, __file__, kind, str(rank), f"{directory}/store", text],
                stdout=subprocess.PIPE,
                env=_environment(),
                text=True,
            )
            for rank in range(RANKS)
        ]
        try:
            said = [process.communicate(timeout=TIMEOUT_SECONDS)[0] for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.wait()
    if any(process.returncode for process in processes):
        raise RuntimeError(f"{kind}: a rank failed; its own words are above")
    found: dict[str, Any] = json.loads(said[-1].splitlines()[-1])
    return found


def _environment() -> dict[str, str]:
    """This process's, with gloo kept to the loopback interface."""
    import os

    return {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}


def data_parallel(rank: int, work: Work, options: dict[str, Any]) -> dict[str, Any]:
    """DistributedDataParallel over the whole supernet; each rank its own passes of every step.

    Without several passes a rank has a step of its own: two subnets are averaged into one step.
    """
    named = work.named()
    stream = work.stream(named)
    supernet = Supernet(named)
    model = nn.parallel.DistributedDataParallel(supernet, find_unused_parameters=True)
    optimizer = optimizer_of(named, supernet.parameters())
    mine: list[Tensor] = []
    dist.barrier()
    start = time.perf_counter()
    each = max(1, work.passes // RANKS)
    for first in range(rank * each, work.steps - work.steps % (RANKS * each), RANKS * each):
        for number in range(first, first + each):
            is_last = number == first + each - 1
            with nullcontext() if is_last else model.no_sync():
                loss = model(named.space.chain(stream[number]), named.data(SEED, number))
                (loss / each).backward()
            mine.append(loss.detach())
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    dist.barrier()
    seconds = time.perf_counter() - start
    return figures(len(mine) * RANKS, seconds, [float(loss) for loss in mine])


class Part(nn.Module):
    """A run of blocks of one subnet, as a stage of a pipeline; one tensor in, one out."""

    def __init__(self, named: Workload, chain: tuple[int, ...], blocks: range) -> None:
        super().__init__()
        self.layers = nn.ModuleList(made(named, block, chain[block]) for block in blocks)

    def forward(self, x: Tensor) -> Tensor:
        """Run the blocks in order; gloo sends contiguous tensors only."""
        for layer in self.layers:
            x = layer(x)
        return x.contiguous()


def pipeline(rank: int, work: Work, options: dict[str, Any]) -> dict[str, Any]:
    """One of PyTorch's schedules over two stages, on one fixed subnet.

    A step of several passes is their batches in one, cut into as many micro-batches again.
    """
    from torch.distributed import pipelining

    named = work.named()
    chain = named.space.chain(work.stream(named)[0])
    bounds = (0, options["cut"], len(chain))
    part = Part(named, chain, range(bounds[rank], bounds[rank + 1]))
    stage = pipelining.PipelineStage(part, rank, RANKS, torch.device("cpu"))
    make = getattr(pipelining, options["schedule"])
    count = MICRO_BATCHES if work.passes == 1 else work.passes
    schedule = make(stage, n_microbatches=count, loss_fn=named.loss)
    optimizer = optimizer_of(named, part.parameters())
    losses: list[float] = []
    start = 0.0
    for number, batches in enumerate(work.batches(named)):
        if number == 1:  # in the first step the stages tell one another their shapes
            start = time.perf_counter()
        batch = {name: torch.cat([each[name] for each in batches]) for name in batches[0]}
        if rank == 0:
            schedule.step(batch["input"])
        else:
            parts: list[Tensor] = []
            schedule.step(target=batch["target"], losses=parts)
            losses.append(sum(float(each.detach()) for each in parts) / len(parts))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    dist.barrier()
    seconds = time.perf_counter() - start
    return figures(work.steps - work.passes, seconds, losses or [0.0])


def main() -> None:
    """One rank."""
    kind, rank, store, text = sys.argv[1:]
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    told = json.loads(text)
    work = Work(**{name: told.pop(name) for name in ("space", "sampler", "steps", "passes")})
    dist.init_process_group(
        "gloo", store=dist.FileStore(store, RANKS), rank=int(rank), world_size=RANKS
    )
    try:
        peer = {"ddp": data_parallel, "pipeline": pipeline}[kind]
        print(json.dumps(peer(int(rank), work, told)))
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
