"""The arguments of ``naspipe train``."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

from naspipe.cli.display.json_results import add_json
from naspipe.cli.display.settings_lists import key_list
from naspipe.cli.flags import add_flags, flags
from naspipe.cli.ports import Options
from naspipe.cli.sources.prepared_data import add_data_place
from naspipe.cli.teaching import teacher
from naspipe.config.definition import Definition, Execution
from naspipe.config.errors import ConfigError
from naspipe.planning.group_shapes import AUTO

_EXAMPLE = """\
examples:
  naspipe train nlp.c1 --steps 100 --stages 2 --sampler spaced:8
  naspipe train nlp.c1 --steps 100 --stages auto
  naspipe train cv.c3 --recipe spos --set lr=0.1
  naspipe train cv.c3 --set lr=0.01 --set optimizer.momentum=0.8 --set rule.stem=frozen
  naspipe train nlp.c1 --checkpoint-every 100 --run-dir runs/one; naspipe train --resume runs/one
  naspipe train nlp.c1 --steps 500 --checkpoint-every 50 --run-dir runs/two --resume-if-exists
  naspipe train cv.c3 --steps 1000 --validate-every 200 --tensorboard
  naspipe train cv.c3 --teacher runs/large --teacher-subnet best --stages 2
  naspipe train byol --momentum 0.99:1 --steps 1000 --stages 2
  naspipe train mymodule:space --data mymodule:batches --stages 2
  torchrun --nnodes 2 ... -m naspipe train nlp.c1 --run-dir /shared/one --resume-if-exists

spaces: nlp.c0 nlp.c1 nlp.c2 nlp.c3 cv.c1 cv.c2 cv.c3, or MODULE:ATTRIBUTE of your own
plain networks: vgg8 vgg16 vgg19 resnet50 resnet101 resnet152 mobilenet-v2 mobilenet-v3 bert-base
  bert-mini distil-bert vit cnn byol moco-v3
samplers: uniform, fair, spaced:W, file:PATH (one JSON list of choices a line), only:0,3,1
streams: --streams 2 trains seeds K and K + 1 side by side, each as it would be alone; a file has
  one line per stream, as in {"space": "nlp.c3", "seed": 1, "steps": 50}; what a line leaves out
  is taken from the command
recipes: spos, fairnas, greedynas, sandwich, evolved-transformer, nasbench201, byol, moco-v3,
  soft-target, distil-bert, blockwise, blockwise-compress, dna, fine-tune (naspipe/recipes/), or a
  TOML file of yours; what it says goes before the space's defaults, --sampler and --set go before
  it
"""

DEFAULTS: dict[str, Any] = {
    **{each.key: each.usual for each in flags(Definition)}, "streams": "1"
}  # fmt: skip
"""Of what defines a run; what is said of its execution has its defaults there."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.epilog = _EXAMPLE + key_list(Execution)
    parser.add_argument(
        "space", metavar="SPACE", nargs="?", help="a space by name, or MODULE:ATTRIBUTE"
    )
    _add_definition(parser.add_argument_group("what is trained"))
    execution = parser.add_argument_group("how it is carried out, which changes no bit")
    add_flags(execution, flags(Execution), words={"stages": AUTO})
    execution.add_argument(
        "--validation",
        metavar="MODULE:FUNCTION",
        help="held-out batches of your own (default: the data's split valid)",
    )
    add_run(parser.add_argument_group("the run and what is shown of it"))


def _add_definition(parser: Options) -> None:
    """What the bits of the result depend on."""
    add_flags(parser, flags(Definition))
    parser.add_argument(
        "--streams",
        metavar="K|FILE",
        help="runs that share the pipeline: K seeds, or one JSON object a line",
    )
    parser.add_argument("--data", metavar="NAME", help="a data set, or MODULE:FUNCTION")
    add_data_place(parser)
    parser.add_argument(
        "--recipe", metavar="NAME|FILE", help="how to train: a recipe of naspipe's or a TOML file"
    )
    teacher.add_arguments(parser)
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="any setting, listed below"
    )


def add_run(parser: Options, name: str = "SPACE") -> None:
    """Where the run is, and its progress; ``name`` is what its folder is called after."""
    parser.add_argument("--run-dir", type=Path, metavar="DIR", help=f"default: runs/{name}-TIME")
    parser.add_argument(
        "--resume",
        type=Path,
        metavar="RUN",
        help="go on with a run from its newest checkpoint, on as many stages as you like",
    )
    parser.add_argument(
        "--resume-if-exists",
        action="store_true",
        help="go on with the run in --run-dir, or begin it where it is not there yet: one command "
        "for the start and for every restart",
    )
    parser.add_argument(
        "--log-every",
        type=_seconds,
        default=10.0,
        metavar="SECONDS",
        help="from one line of progress to the next, where there is no terminal (default: 10)",
    )
    parser.add_argument("--quiet", action="store_true", help="no progress")
    add_json(parser, "the run directory: status, steps, loss, what was measured")


def resume_of(arguments: argparse.Namespace) -> bool | str:
    """Whether a command line goes on with a run; as ``resume=`` of :func:`naspipe.train`.

    Raises:
        ConfigError: for options that do not go together.
    """
    if not arguments.resume_if_exists:
        return arguments.resume is not None
    if arguments.resume or not arguments.run_dir:
        found = f"--resume {arguments.resume}" if arguments.resume else "none"
        raise ConfigError(
            f"--resume-if-exists: expected --run-dir DIR with it, and the definition of the run, "
            f"found {found}"
        )
    return "if_exists"


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < math.inf:
        raise argparse.ArgumentTypeError(f"expected seconds, 0 or more, found {text!r:.80}")
    return seconds
