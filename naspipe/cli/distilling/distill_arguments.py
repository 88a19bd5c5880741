"""The arguments of ``naspipe distill``."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from naspipe.cli.display.settings_lists import key_list
from naspipe.cli.flags import add_flags, flags
from naspipe.cli.sources.prepared_data import add_data_place
from naspipe.cli.training.train_arguments import add_run
from naspipe.config.definition import Definition, Execution

if TYPE_CHECKING:
    from naspipe.cli.ports import Options

_EXAMPLE = """\
examples:
  naspipe train mobilenet-v2 --steps 2000 --run-dir runs/teacher
  naspipe distill runs/teacher proxyless --steps 2000 --stages 2 --run-dir runs/student
  naspipe distill --resume runs/student --stages 1
  naspipe distill runs/mine mymodule:students --cuts 3,6

students: proxyless (of mobilenet-v2), separable (of vgg8, vgg16, vgg19), narrow-encoder (of
  bert-mini, bert-base), or MODULE:ATTRIBUTE of your own: a list of spaces or modules, one for each
  block of the teacher, or a function that returns one; its module may have a loss and a last_loss
"""

DEFINING = ("scale", "seed", "steps", "sampler")
"""Settings of a definition that have an option here."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.epilog = _EXAMPLE + key_list(Execution)
    parser.add_argument(
        "teacher", metavar="TEACHER", nargs="?", help="a finished run, or an exported network"
    )
    parser.add_argument(
        "student", metavar="STUDENT", nargs="?", help="by name, or MODULE:ATTRIBUTE"
    )
    _add_definition(parser.add_argument_group("what is trained"))
    add_flags(
        parser.add_argument_group("how it is carried out, which changes no bit"), flags(Execution)
    )
    add_run(parser.add_argument_group("the run and what is shown of it"), "STUDENT")


def _add_definition(parser: Options) -> None:
    add_flags(parser, flags(Definition, *DEFINING))
    parser.add_argument(
        "--data", metavar="NAME", help="a data set, or MODULE:FUNCTION (default: the teacher's)"
    )
    add_data_place(parser)
    parser.add_argument(
        "--cuts",
        type=_positions,
        metavar="P,P,...",
        help="layers of the teacher with which its second block begins, its third one, ...",
    )
    parser.add_argument(
        "--network", metavar="NAME", help="which network an exported TEACHER is, as for train"
    )
    parser.add_argument(
        "--teacher-subnet", metavar="CHOICES", help="of its supernet, as for train (default: last)"
    )
    parser.add_argument(
        "--recipe", metavar="NAME|FILE", help="how to train (default: the student's)"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="any setting, listed below"
    )


def _positions(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"expected positions, as in 3,6,9, found {text!r:.80}"
        ) from None
