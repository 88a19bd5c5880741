"""The work that all peers do alike: a named space, a stream of subnets, batches, one optimizer."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from naspipe.jobs.workload import Workload
from naspipe.streams.samplers import draw_stream
from naspipe.streams.stream_file import write_stream
from scripts.tiny_workload import flowing, tiny_workload
from tests.keyed_draws import keyed_seed

SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What is to be trained."""

    space: str
    sampler: str
    """``fixed`` trains the first uniform subnet again and again."""
    steps: int
    """Passes, of one subnet and one batch each."""
    passes: int = 1
    """That end in one optimizer step."""

    def named(self) -> Workload:
        """The space with its data, loss and recipe, at the scale tiny; its lags have grown."""
        return flowing(tiny_workload(self.space))

    def stream(self, named: Workload) -> Sequence[Sequence[int]]:
        """One choice per choice block and step."""
        counts = named.space.candidate_counts
        if self.sampler == "fixed":
            return [draw_stream("uniform", counts, SEED, 1)[0]] * self.steps
        return draw_stream(self.sampler, counts, SEED, self.steps)

    def batches(self, named: Workload) -> Iterator[list[dict[str, Tensor]]]:
        """Those of each step."""
        for first in range(0, self.steps - self.passes + 1, self.passes):
            numbers = range(first, first + self.passes)
            yield [dict(named.data(SEED, number)) for number in numbers]


def written_stream(work: Work, named: Workload, directory: Path) -> str:
    """The sampler's name for naspipe; a fixed subnet becomes a file."""
    if work.sampler != "fixed":
        return work.sampler
    path = directory / "stream.jsonl"
    write_stream(path, work.stream(named))
    return f"file:{path}"


class Supernet(nn.Module):
    """Every layer of a space, made as the plain loop makes them; computes one subnet's loss."""

    def __init__(self, named: Workload) -> None:
        super().__init__()
        self.space, self.loss = named.space, named.loss
        self.blocks = nn.ModuleList(
            nn.ModuleList(made(named, block, c) for c in range(len(spec.candidates)))
            for block, spec in enumerate(named.space.blocks)
        )

    def forward(self, chain: Sequence[int], batch: dict[str, Tensor]) -> Tensor:
        """Run a batch through one layer per block; returns the loss."""
        state: tuple[Tensor, ...] = ()
        for block, candidate in enumerate(chain):
            given = [batch[name] for name in self.space.fields(block)]
            out = self.blocks[block][candidate](*state, *given)  # type: ignore[index]
            state = out if isinstance(out, tuple) else (out,)
        loss: Tensor = self.loss(*state, batch["target"])
        return loss


def made(named: Workload, block: int, candidate: int) -> nn.Module:
    """A layer from its own seed, as in the plain loop."""
    torch.manual_seed(keyed_seed(f"{SEED}/layer/{block}/{candidate}"))
    module: nn.Module = named.space.blocks[block].candidates[candidate]()
    return module.train()


def optimizer_of(named: Workload, parameters: Any) -> torch.optim.Optimizer:
    """The recipe's optimizer over all of these parameters at once."""
    recipe = named.recipe
    chosen: type[Any] = getattr(torch.optim, recipe.optimizer)
    optimizer: torch.optim.Optimizer = chosen(
        parameters, lr=recipe.lr, **dict(recipe.optimizer_options)
    )
    return optimizer


def scratch() -> tempfile.TemporaryDirectory[str]:
    """A directory that is gone when the peer is done."""
    return tempfile.TemporaryDirectory(prefix="naspipe-peer-")


def figures(steps: int, seconds: float, losses: Sequence[float]) -> dict[str, Any]:
    """What every peer reports."""
    tail = losses[-10:]
    return {
        "steps_per_second": steps / seconds,
        "seconds": seconds,
        "mean_of_last_losses": sum(tail) / len(tail),
        "losses": list(losses),
    }
