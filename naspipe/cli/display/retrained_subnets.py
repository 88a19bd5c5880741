"""The table of subnets that were trained alone, and what it says of the search."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from naspipe.search.retrained import FEWEST, Retrained, compared_by, confidence
from naspipe.search.search_directory import Search

_NAMES = {"loss": "loss", "top1": "top-1", "top5": "top-5"}


def print_retrained(search: Search, retrained: Sequence[Retrained]) -> None:
    """Scores of each subnet in the search and alone, the search's best first.

    Args:
        search: that ranked them.
        retrained: with the same terms.
    """
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 120
    terms = retrained[0].terms
    console.print(f"alone for {terms.steps} steps, seed {terms.seed}; {terms.judged_by}")
    table = Table(box=None, pad_edge=False)
    heads = [_NAMES.get(search.score, search.score), *(f"{each} alone" for each in _NAMES.values())]
    for head in ("subnet", "rank", *heads):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("choices", overflow="ellipsis", no_wrap=True)
    places = {each.sequence_id: place for place, each in enumerate(search.ranked(), 1)}
    for each in retrained:
        candidate, scores = search.candidates[each.subnet], each.scores
        table.add_row(
            str(each.subnet), str(places[each.subnet]),
            _text(search.score, candidate.scores.of(search.score)),
            *(_text(name, scores.of(name)) for name in _NAMES),
            ",".join(map(str, candidate.choices)),
        )  # fmt: skip
    console.print(table)
    console.print(in_words(search, retrained))


def _text(name: str, value: float) -> str:
    """Shares in percent, as ``naspipe search`` shows them."""
    if value != value:
        return ""
    return f"{100 * value:.2f}" if name in ("top1", "top5") else f"{value:.4f}"


def in_words(search: Search, retrained: Sequence[Retrained]) -> str:
    """How far the ranking holds, in a line."""
    found = confidence(search, retrained)
    if found is None:
        return f"fewer than {FEWEST} subnets say nothing of the ranking; retrain more"
    return (
        f"Kendall's tau with {compared_by(search.score)} alone: {found.tau:.2f} "
        f"({found.low:.2f} to {found.high:.2f}, 90 %) over {found.subnets} subnets: the better one "
        f"of two is named in {found.right_pairs:.0f} of 100 pairs"
    )
