"""The tables of a search: its best subnets, and the front."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from naspipe.search.search_directory import Candidate, Search
from naspipe.trace.access.decided import Decided


def print_tables(
    search: Search,
    shown: Sequence[Candidate],
    measured: Mapping[int, float],
    decided: Decided,
) -> None:
    """The best subnets, and those that no other beats in both score and parameters.

    Args:
        search: that ended.
        shown: the best ones.
        measured: milliseconds of whole forwards, by subnet.
        decided: what labels say of a subnet.
    """
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 120
    for title, rows in (
        (f"best by {search.score}", shown),
        (f"front: {search.score} against parameters", search.front("params")),
    ):
        console.print(_table(title, rows, measured, decided, console.width))


def _table(
    title: str,
    candidates: Sequence[Candidate],
    measured: Mapping[int, float],
    decided: Decided,
    width: int,
) -> Table:
    """Numbers in full; choices and labels as far as there is room, else with an ellipsis."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    names = [
        "subnet", "loss", "top-1", "top-5", "BLEU", "synflow", "naswot", "combined", "MFLOPs",
        "params", "ms",
    ]  # fmt: skip
    rows = [_row(each, measured) for each in candidates]
    used = [place for place in range(len(names)) if any(row[place] != "" for row in rows)]
    room = width
    for place in used:
        widest = max(len(row[place]) for row in [names, *rows])
        table.add_column(names[place], justify="right", no_wrap=True, min_width=widest)
        room -= widest + 2
    subnets = [
        (",".join(map(str, each.choices)), decided.of_subnet(each.choices)) for each in candidates
    ]
    rooms = [room]
    if any(labels for _, labels in subnets):
        widest = max(len(choices) for choices, _ in subnets)
        rooms = [first := min(max(widest, len("choices")), room // 2), room - first - 2]
    for name, own in zip(("choices", "labels"), rooms, strict=False):
        table.add_column(name, overflow="ellipsis", no_wrap=True, max_width=max(1, own))
    for subnet, row in zip(subnets, rows, strict=True):
        table.add_row(*(row[place] for place in used), *subnet[: len(rooms)])
    return table


def _row(candidate: Candidate, measured: Mapping[int, float]) -> list[str]:
    scores, cost = candidate.scores, candidate.cost
    latency = measured.get(candidate.sequence_id, cost.latency_ms)
    return [
        str(candidate.sequence_id),
        _text(scores.loss, ".4f"),
        _text(scores.top1 * 100, ".2f"),
        _text(scores.top5 * 100, ".2f"),
        _text(scores.bleu, ".2f"),
        _text(scores.synflow, ".3f"),
        _text(scores.naswot, ".3f"),
        _text(scores.combined, ".3f"),
        _text(cost.flops / 1e6, ".2f"),
        _text(cost.params, ",.0f"),
        _text(latency, ".2f"),
    ]


def _text(value: float, form: str) -> str:
    return "" if value != value else format(value, form)
