"""Find the best subnets of a run, evaluated on held-out data with the weights of the run.

Subnets are evaluated in the same pipeline that trains them. If layers keep running statistics,
these are recomputed for each subnet. With the same strategy and seed, the same subnets are
evaluated and their scores are bit-identical, on any number of stages. The results are written to
RUN/search-NAME.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from naspipe.cli.options import Options, add_flags, add_options, flags, given
from naspipe.cli.output import cost_figures, in_cells, table_console, tell
from naspipe.cli.sources import add_judged_run
from naspipe.config.errors import ConfigError
from naspipe.config.execution import Execution

if TYPE_CHECKING:
    from rich.table import Table

    from naspipe.search.search_directory import Candidate, Search
    from naspipe.search.strategies import Limits
    from naspipe.store.labels import Decided

_EXAMPLE = """\
examples:
  naspipe search runs/two --budget 200 --stages 2
  naspipe search runs/two --strategy random --budget 50 --score top1 --max-params 60k --name small
  naspipe search runs/two --strategy nni:TPE --budget 100
  naspipe search runs/two --score loss+naswot
  naspipe search runs/mine --space mymodule:space --data mymodule:batches --validation mymodule:held
  naspipe export runs/two --subnet best -o exported

strategies: evolution, random, greedy, all; nni:NAME (Random, GridSearch, RegularizedEvolution, TPE,
  PolicyBasedRL); or your own MODULE:FUNCTION
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EXAMPLE
    add_options(
        parser,
        """
        run RUN                      run directory
        --strategy NAME [evolution]  strategy that proposes subnets, listed below
        --budget N [100]             number of subnets to evaluate
        --seed K [0]                 seed of the strategy
        --delay D [8]                number of subnets after which the strategy learns a score
        --score [loss]               loss, top1 or top5; bleu (decodes, in one process); synflow or
            naswot (initial weights, in one process); or a sum, such as loss+naswot
        --bleu                       also decode with the best subnets (nlp spaces)
        --beams K [4]                number of beams of the beam search
        --calibrate C [4]            number of training batches from which running statistics are
            recomputed; 0 to use those of the run
        --ema                        evaluate the moving averages of the weights
        --set KEY=VALUE...           setting of the strategy: population, tournament or mutation
        """,
    )
    add_cost_limits(parser)
    add_options(
        parser,
        """
        --latency [profile]  profile (sum of the times of the layers) or measured (also time the
            best subnets as a whole)
        """,
    )
    add_flags(parser, flags(Execution, "stages", "device", "memory_budget", "verify"), {})
    add_options(
        parser,
        """
        --name []     name of the search (default: the next number)
        --top K [10]  number of subnets to show
        """,
    )
    add_judged_run(parser)
    add_options(parser, "--quiet  do not show progress")


def add_cost_limits(parser: Options) -> None:
    """Declare the options that :func:`cost_limits` reads."""
    add_options(
        parser,
        """
        --max-flops N   maximum FLOPs of one sample, such as 20M
        --max-params N  maximum number of parameters, such as 60k
        """,
        max_flops=str,
        max_params=str,
    )
    parser.add_argument(
        "--max-latency-ms",
        type=float,
        default=0.0,
        metavar="MS",
        help="maximum latency in milliseconds",
    )


def cost_limits(arguments: argparse.Namespace) -> Limits:
    """Return the limits on the costs of a subnet."""
    from naspipe.search.strategies import Limits, parse_count

    return Limits(
        flops=parse_count(arguments.max_flops, "--max-flops") if arguments.max_flops else 0.0,
        params=parse_count(arguments.max_params, "--max-params") if arguments.max_params else 0.0,
        latency_ms=arguments.max_latency_ms,
    )


def run(arguments: argparse.Namespace) -> int:
    """Search; print the tables and the search's directory on stdout."""
    from naspipe.api.search import judge_subnets
    from naspipe.cli.sources import judged_run
    from naspipe.search.search_directory import SearchDefinition
    from naspipe.store.labels import Decided, decided_in

    if arguments.top < 1:
        raise ConfigError(f"--top: expected 1 or more, found {arguments.top}")
    if arguments.latency not in ("profile", "measured"):
        raise ConfigError(
            f"--latency: expected profile or measured, found {arguments.latency!r:.80}"
        )
    definition = SearchDefinition(
        strategy=arguments.strategy,
        options=dict(_option(text) for text in arguments.set),
        budget=arguments.budget,
        seed=arguments.seed,
        delay=arguments.delay,
        score=arguments.score,
        calibration=arguments.calibrate,
        limits=cost_limits(arguments),
        ema=arguments.ema,
    )
    found = judged_run(arguments)
    definition = replace(definition, validation=found.validation)
    decode = None
    if arguments.bleu or arguments.score == "bleu":
        from naspipe.export.translation import BeamOptions, BleuScorer

        options = BeamOptions(beams=arguments.beams)
        decode = BleuScorer(found.run, found.held_out, found.validation, options)
    search = judge_subnets(
        found.run,
        found.data,
        found.held_out,
        found.loss,
        definition,
        Execution(**given(Execution, arguments)),
        name=arguments.name,
        is_quiet=arguments.quiet,
        judge=decode if arguments.score == "bleu" else None,
    )
    shown = search.ranked()[: arguments.top]
    measured: dict[int, float] = {}
    if arguments.latency == "measured":
        from naspipe.export.translation import measure_top

        measured = measure_top(found.run, search, shown, found.held_out)
        if limit := definition.limits.latency_ms:
            shown = [each for each in shown if measured[each.sequence_id] <= limit]
    if decode is not None and search.score != "bleu":
        shown = [
            each._replace(scores=each.scores._replace(bleu=decode(each.choices))) for each in shown
        ]
        search.note(bleu={str(each.sequence_id): each.scores.bleu for each in shown})
    print_tables(search, shown, measured, Decided(decided_in(found.run.space)))
    tell(str(search.path))
    return 0


def _option(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    try:
        return name, float(value) if "." in value else int(value)
    except ValueError:
        raise ConfigError(f"--set {text!r:.80}: expected KEY=NUMBER, as in population=20") from None


# The tables


def print_tables(
    search: Search,
    shown: Sequence[Candidate],
    measured: Mapping[int, float],
    decided: Decided,
) -> None:
    """Print the best subnets, and those that no other beats in both score and parameters.

    ``measured`` has the milliseconds of whole forwards, by subnet; ``decided`` the labels of each.
    """
    console = table_console()
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
    """Build a table with full numbers; choices and labels are cut if there is not enough room."""
    from rich.table import Table

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
    latency_ms = measured.get(candidate.sequence_id, cost.latency_ms)
    figures = (
        (scores.loss, ".4f"),
        (scores.top1 * 100, ".2f"),
        (scores.top5 * 100, ".2f"),
        (scores.bleu, ".2f"),
        (scores.synflow, ".3f"),
        (scores.naswot, ".3f"),
        (scores.combined, ".3f"),
        *cost_figures(cost.flops, cost.params, latency_ms),
    )
    return [str(candidate.sequence_id), *in_cells(figures)]
