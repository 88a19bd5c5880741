"""Live progress of the ratings of a distillation's blocks, and the table of their combination."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from naspipe.cli.display.simulated_plans import WIDTH
from naspipe.frontend.display.bar import Bar
from naspipe.search.combination import Combination
from naspipe.search.scores import Scores
from naspipe.search.search_directory import Candidate, Search

if TYPE_CHECKING:
    from naspipe.frontend.training.distilled import Blockwise

_LINE_EVERY_SECONDS = 10.0


class RatingProgress(Bar):
    """Shows paths, speed and the best score of the block that is rated; see ``SearchObserver``.

    Args:
        title: of the work.
        found: whose blocks.
        budget: the most paths of a block.
        is_quiet: show nothing.
    """

    def __init__(self, title: str, found: Blockwise, budget: int, is_quiet: bool) -> None:
        counts = [math.prod(run.space.drawn_counts) for run in found.blocks]
        total = sum(min(count, budget) for count in counts)
        super().__init__(title, total, is_quiet, _LINE_EVERY_SECONDS)
        self._done, self._block = 0, -1
        self._start = time.monotonic()

    def on_candidate(self, candidate: Candidate, best: Candidate | None) -> None:
        """The next path is rated; the first of a block is its number 0."""
        self._block += candidate.sequence_id == 0
        if not self.is_shown:
            self._start = time.monotonic()
            self.show()
        seconds = time.monotonic() - self._start
        numbers = f"block {self._block}"
        if seconds > 0 and self._done:
            numbers += f"  {self._done / seconds:.2f} paths/s"
        if best is not None:
            numbers += f"  best {best.scores.loss:.4f}"
        self._done += 1
        self.update(self._done, numbers)


def print_combination(ratings: Sequence[Search], best: Combination, scores: Scores | None) -> None:
    """The path of each block, their sums, and how the network does whole.

    Args:
        ratings: of each block.
        best: one path of each.
        scores: of the network; None where it was not judged.
    """
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = WIDTH
    console.print(_table(ratings, best))
    if scores is not None:
        shares = (("top-1", scores.top1), ("top-5", scores.top5))
        said = [f"{name} {share * 100:.2f}" for name, share in shares if share == share]
        console.print(f"the network: {'  '.join([f'loss {scores.loss:.4f}', *said])}")


def _table(ratings: Sequence[Search], best: Combination) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("block", "rated", "place", "score", "MFLOPs", "params", "ms"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("measure", "choices"):
        table.add_column(name, overflow="ellipsis", no_wrap=True)
    for number, (rating, choices) in enumerate(zip(ratings, best.choices, strict=True)):
        ranked = rating.ranked()
        place = next(n for n, each in enumerate(ranked, 1) if each.choices == choices)
        found = ranked[place - 1]
        measure = str(rating.manifest["definition"]["loss"]).rpartition(".")[2]
        table.add_row(
            str(number), str(len(rating.candidates)), str(place), f"{found.scores.loss:.4f}",
            *_costs(found.cost.flops, found.cost.params, found.cost.latency_ms),
            measure, ",".join(map(str, choices)),
        )  # fmt: skip
    costs = _costs(*(best.costs[name] for name in ("flops", "params", "latency_ms")))
    table.add_row("all", "", "", f"{best.score:.4f}", *costs, "", "")
    return table


def _costs(flops: float, params: float, latency_ms: float) -> list[str]:
    shown = ((flops / 1e6, ".2f"), (params, ",.0f"), (latency_ms, ".2f"))
    return ["" if value != value else format(value, form) for value, form in shown]
