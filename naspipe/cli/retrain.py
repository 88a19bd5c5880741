"""Train subnets of a search alone, and say how far the search's ranking holds.

The best of the search, and others at even distances below them, begin with their first weights and
take the run's recipe. They are trained side by side on the stages, each with the bits of a plain
loop. Those that are there already are not trained again; what was interrupted goes on.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from naspipe.cli.display.result_lines import tell
from naspipe.cli.flags import add_flags, flags, given
from naspipe.cli.sources.judged_run import add_judged_run
from naspipe.config.definition import Execution

_EXAMPLE = """\
examples:
  naspipe retrain runs/two --steps 500                           the best three and five others
  naspipe retrain runs/two --steps 500 --best 5 --others 10 --stages 2
  naspipe retrain runs/two --steps 500 --search small --split test
  naspipe export runs/two/search-1/alone-500-0/subnet-17 --subnet first -o exported
  naspipe report runs/two                                        draws inherited against alone
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.epilog = _EXAMPLE
    parser.add_argument("run", metavar="RUN", type=Path, help="run directory")
    parser.add_argument(
        "--steps", type=int, required=True, metavar="N", help="of each subnet, from first weights"
    )
    parser.add_argument("--search", default="", metavar="NAME", help="(default: the newest)")
    parser.add_argument(
        "--best", type=int, default=3, metavar="K", help="so many of the best (default: 3)"
    )
    parser.add_argument(
        "--others", type=int, default=5, metavar="K",
        help="so many at even distances below, down to the worst (default: 5)",
    )  # fmt: skip
    parser.add_argument(
        "--seed", type=int, metavar="S", help="of weights and batches (default: the run's)"
    )
    add_flags(parser, flags(Execution, "stages", "device", "memory_budget"), {})
    add_judged_run(parser)
    parser.add_argument("--quiet", action="store_true", help="no progress")


def run(arguments: argparse.Namespace) -> int:
    """Retrain; prints the table and how far the ranking holds on stdout."""
    from naspipe.cli.display.retrained_subnets import print_retrained
    from naspipe.cli.sources.judged_run import judged_run
    from naspipe.frontend.display.watching import training_progress
    from naspipe.frontend.search.retraining import Retraining
    from naspipe.search.run_searches import find_search

    search = find_search(arguments.run, arguments.search)
    found = judged_run(arguments)
    retraining = Retraining(
        **found._asdict(),
        search=search,
        steps=arguments.steps,
        seed=arguments.seed,
        execution=Execution(**given(Execution, arguments)),
        watch=partial(training_progress, is_quiet=arguments.quiet),
    )
    retrained = retraining.start(arguments.best, arguments.others)
    print_retrained(search, retrained)
    tell(str(search.path))
    return 0
