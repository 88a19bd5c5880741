"""The table of subnets that were trained alone, and what it says of the search."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from naspipe.search.retrained import FEWEST, Retrained, compared_by, confidence
from naspipe.search.search_directory import Search


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
    title = f"alone for {terms.steps} steps, seed {terms.seed}; {terms.judged_by}"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for head in ("subnet", "rank", search.score, "loss alone", "top-1 alone", "top-5 alone"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("choices", overflow="ellipsis", no_wrap=True)
    places = {each.sequence_id: place for place, each in enumerate(search.ranked(), 1)}
    for each in retrained:
        candidate, scores = search.candidates[each.subnet], each.scores
        table.add_row(
            str(each.subnet), str(places[each.subnet]),
            f"{candidate.scores.of(search.score):.4f}", f"{scores.loss:.4f}",
            *(f"{100 * value:.2f}" if value == value else "" for value in scores[1:3]),
            ",".join(map(str, candidate.choices)),
        )  # fmt: skip
    console.print(table)
    console.print(in_words(search, retrained))


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
