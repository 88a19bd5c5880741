"""The arguments of ``naspipe combine``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from naspipe.cli.flags import add_flags, flags
from naspipe.cli.search import add_cost_limits
from naspipe.cli.sources.judged_run import add_held_out
from naspipe.cli.sources.prepared_data import add_data_place
from naspipe.config.definition import Execution

if TYPE_CHECKING:
    from naspipe.cli.ports import Options

NEWEST = "newest"

_EXAMPLE = """\
examples:
  naspipe combine runs/student --stages 2
  naspipe combine runs/student --max-params 60k --max-flops 20M -o exported
  naspipe combine runs/student --ratings newest --max-params 40k     rates nothing again
  naspipe combine runs/student --budget 500 --measure l2 --name half
"""

_OF_RATINGS = ("measure", "last_measure", "budget", "strategy", "seed", "name")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.epilog = _EXAMPLE
    parser.add_argument("run", metavar="RUN", type=Path, help="what naspipe distill has left")
    _add_rating(parser.add_argument_group("how paths are rated"))
    add_cost_limits(parser.add_argument_group("what the network may cost"))
    group = parser.add_argument_group("the network, and what is shown")
    group.add_argument("-o", "--output", type=Path, metavar="DIR", help="export it there, too")
    group.add_argument("--onnx", action="store_true", help="write model.onnx too")
    add_data_place(group)
    group.add_argument("--quiet", action="store_true", help="no progress")


def _add_rating(parser: Options) -> None:
    parser.add_argument(
        "--measure", metavar="NAME", help="l1, l2, loss or MODULE:FUNCTION (default: l1)"
    )
    parser.add_argument(
        "--last-measure", metavar="NAME", help="of the last block (default: loss, its own)"
    )
    parser.add_argument(
        "--budget", type=int, metavar="N",
        help="paths of a block to rate; all, where there are no more (default: 2000)",
    )  # fmt: skip
    parser.add_argument(
        "--strategy", metavar="NAME",
        help="proposes paths of a block that has more (default: random)",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, metavar="K", help="of the strategy (default: 0)")
    parser.add_argument(
        "--calibrate", type=int, metavar="C",
        help="training batches that running statistics are taken from; 0 for the run's own "
        "(default: 4)",
    )  # fmt: skip
    add_held_out(parser)
    parser.add_argument(
        "--ratings", metavar="NAME", help=f"take those of an earlier call: a name, or {NEWEST}"
    )
    parser.add_argument("--name", help="of the ratings (default: the next number)")
    add_flags(parser, flags(Execution, "stages", "device", "memory_budget"), {})


def read_limits(arguments: argparse.Namespace) -> dict[str, float]:
    """The limits that are given, by the names of costs.

    Raises:
        ConfigError: for a limit that is none, or options that do not go together.
    """
    from naspipe.cli.search import cost_limits
    from naspipe.config.errors import ConfigError

    unused = [name for name in _OF_RATINGS if getattr(arguments, name) is not None]
    if arguments.ratings and unused:
        raise ConfigError(
            f"--{unused[0].replace('_', '-')}: expected nothing about how paths are rated beside "
            f"--ratings, which takes them as they were; leave one of them out"
        )
    if arguments.onnx and not arguments.output:
        raise ConfigError("--onnx: expected -o DIR with it, found none")
    limits = cost_limits(arguments)
    named = {name: getattr(limits, name) for name in ("flops", "params", "latency_ms")}
    return {name: limit for name, limit in named.items() if limit}


def measure_of(name: str) -> Any:
    """A measure by name, or a user's own function.

    Raises:
        ConfigError: when it cannot be found.
    """
    from naspipe.config.user_code import import_attribute

    return import_attribute(name) if ":" in name else name
