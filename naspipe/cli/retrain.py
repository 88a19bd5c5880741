"""Train subnets of a search alone, and report how well the ranking of the search holds.

The best subnets of the search, and others at even intervals below them in the ranking, start from
their initial weights and are trained with the run's recipe. They are trained in parallel on the
stages, and each result is bit-identical to that of a plain loop. Subnets that have already been
trained are not trained again; interrupted ones are resumed.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING

from naspipe.cli.options import add_flags, add_options, flags, given
from naspipe.cli.output import print_table, table_console, tell
from naspipe.cli.sources import add_judged_run
from naspipe.config.execution import Execution

if TYPE_CHECKING:
    from collections.abc import Sequence

    from naspipe.search.retrained import Retrained
    from naspipe.search.search_directory import Search

_EXAMPLE = """\
examples:
  naspipe retrain runs/two --steps 500                           the three best and five others
  naspipe retrain runs/two --steps 500 --best 5 --others 10 --stages 2
  naspipe retrain runs/two --steps 500 --search small --split test
  naspipe export runs/two/search-1/alone-500-0/subnet-17 --subnet first -o exported
  naspipe report runs/two                                        plots scores inherited and alone
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EXAMPLE
    add_options(
        parser,
        """
        run RUN           run directory
        --steps N!        number of steps for each subnet, from its initial weights
        --search NAME []  name of the search (default: the newest)
        --best K [3]      number of best subnets to train
        --others K [5]    number of further subnets to train, evenly spaced in the ranking down to
            the worst
        --seed S          seed of the weights and batches (default: the run's)
        """,
        seed=int,
    )
    add_flags(parser, flags(Execution, "stages", "device", "memory_budget"), {})
    add_judged_run(parser)
    add_options(parser, "--quiet  do not show progress")


def run(arguments: argparse.Namespace) -> int:
    """Retrain; print the table and the reliability of the ranking on stdout."""
    from naspipe.api.observers import training_progress
    from naspipe.api.retraining import retrain
    from naspipe.cli.sources import judged_run
    from naspipe.search.search_directory import find_search

    search = find_search(arguments.run, arguments.search)
    found = judged_run(arguments)
    retrained = retrain(
        search=search,
        **found._asdict(),
        steps=arguments.steps,
        seed=arguments.seed,
        best=arguments.best,
        others=arguments.others,
        execution=Execution(**given(Execution, arguments)),
        watch=partial(training_progress, is_quiet=arguments.quiet),
    )
    print_retrained(search, retrained)
    tell(str(search.path))
    return 0


# The table, and its conclusion on the search


_NAMES = {"loss": "loss", "top1": "top-1", "top5": "top-5"}


def print_retrained(search: Search, retrained: Sequence[Retrained]) -> None:
    """Print the scores of each subnet in the search and alone, the search's best first."""
    terms = retrained[0].terms
    table_console().print(f"alone for {terms.steps} steps, seed {terms.seed}; {terms.judged_by}")
    alone = (f"{each} alone" for each in _NAMES.values())
    heads = ["subnet", "rank", _NAMES.get(search.score, search.score), *alone, "choices"]
    places = {each.sequence_id: place for place, each in enumerate(search.ranked(), 1)}
    rows = []
    for each in retrained:
        candidate = search.candidates[each.subnet]
        scores = [_text(name, each.scores.of(name)) for name in _NAMES]
        inherited = _text(search.score, candidate.scores.of(search.score))
        choices = ",".join(map(str, candidate.choices))
        rows.append((str(each.subnet), str(places[each.subnet]), inherited, *scores, choices))
    console = print_table(heads, rows, left=("choices",), has_lines=False)
    console.print(in_words(search, retrained))


def _text(name: str, value: float) -> str:
    """Format shares in percent, as ``naspipe search`` does."""
    if value != value:
        return ""
    return f"{100 * value:.2f}" if name in ("top1", "top5") else f"{value:.4f}"


def in_words(search: Search, retrained: Sequence[Retrained]) -> str:
    """Return the reliability of the ranking in a line."""
    from naspipe.search.retrained import FEWEST, compared_by, confidence

    found = confidence(search, retrained)
    if found is None:
        return f"fewer than {FEWEST} subnets say nothing of the ranking; retrain more"
    return (
        f"Kendall's tau with {compared_by(search.score)} alone: {found.tau:.2f} "
        f"({found.low:.2f} to {found.high:.2f}, 90 %) over {found.subnets} subnets: the better one "
        f"of two is named in {found.right_pairs:.0f} of 100 pairs"
    )
