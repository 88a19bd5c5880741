"""Repeat steps of a finished run in a plain PyTorch loop, and compare every bit.

The plain loop uses no part of the pipeline. It runs the modules, data and loss of the run's
definition, one subnet at a time. The losses that the run recorded are compared and, if the steps
end at a checkpoint that the run has kept, every parameter, buffer and optimizer state.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from naspipe.cli.data import add_data_place
from naspipe.cli.options import add_options
from naspipe.cli.output import add_json, as_json
from naspipe.config.errors import ConfigError

if TYPE_CHECKING:
    from naspipe.api.training import Training

_EXAMPLE = """\
examples:
  naspipe verify runs/one                             the first steps, as with --verify auto
  naspipe verify runs/one --steps all                 the whole run, including its last checkpoint
  naspipe verify runs/one --from 100 --steps 20

exit status: 0 identical; 1 different; 2 nothing could be compared
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EXAMPLE
    add_options(parser, "run RUN  run directory")
    parser.add_argument(
        "--from",
        dest="checkpoint",
        metavar="STEP|CHECKPOINT",
        help="start from a checkpoint that the run has kept, given by its step or its name",
    )
    add_options(
        parser, "--steps N|all  number of steps (default: 4, or 3 more than the longest lag)"
    )
    add_data_place(parser)
    add_json(parser, "a line")


def run(arguments: argparse.Namespace) -> int:
    """Print the comparison; return the exit status."""
    from dataclasses import asdict

    from naspipe.api.verify import verify_finished
    from naspipe.cli import distill, train

    steps = _steps(arguments.steps)
    is_distilled = (arguments.run / "block-0").is_dir()
    command = distill if is_distilled else train
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    words = ["--resume", str(arguments.run), "--quiet"]
    if arguments.data_dir is not None:
        words += ["--data-dir", str(arguments.data_dir)]
    found = []

    def verify(training: Training) -> None:
        found.append(verify_finished(training, steps, arguments.checkpoint))

    command.carry_out(parser.parse_args(words), act=verify)
    compared = found[0]
    print(as_json(asdict(compared)) if arguments.json else compared)
    if compared.because:
        return 2
    return 1 if compared.difference else 0


def _steps(text: str | None) -> int | None:
    if text is None:
        return None
    if text == "all":
        return 10**9
    if not text.isdecimal() or not 0 < int(text) < 10**9:
        raise ConfigError(f"--steps: expected all or a number of steps, 1 or more, found {text!r}")
    return int(text)
