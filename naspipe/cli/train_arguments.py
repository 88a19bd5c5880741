"""The arguments of ``naspipe train``."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from naspipe.core.config import Execution

_EXAMPLE = """\
examples:
  naspipe train nlp.c1 --steps 100 --stages 2 --sampler spaced:8
  naspipe train cv.c3 --recipe spos --set lr=0.1
  naspipe train cv.c3 --set lr=0.01 --set optimizer.momentum=0.8 --set rule.stem=frozen
  naspipe train nlp.c1 --checkpoint-every 100 --run-dir runs/one; naspipe train --resume runs/one
  naspipe train cv.c3 --steps 1000 --validate-every 200 --tensorboard
  naspipe train mymodule:space --data mymodule:batches --stages 2
  torchrun --nnodes 2 --nproc-per-node 1 ... -m naspipe train nlp.c1 --run-dir /shared/one

spaces: nlp.c0 nlp.c1 nlp.c2 nlp.c3 cv.c1 cv.c2 cv.c3, or MODULE:ATTRIBUTE of your own
samplers: uniform, fair, spaced:W, file:PATH (one JSON list of choices a line)
streams: --streams 2 trains seeds K and K + 1 side by side, each as it would be alone; a file has
  one line per stream, as in {"space": "nlp.c3", "seed": 1, "steps": 50}; what a line leaves out
  is taken from the command
recipes: spos, fairnas, greedynas, sandwich, evolved-transformer (naspipe/recipes/), or a TOML file
  of yours; what it says goes before the space's defaults, --sampler and --set go before it
settings: lr, schedule, warmup_steps, precision, optimizer, optimizer.OPTION, rule.SHARED_LAYER,
  data.max_tokens, data.batch_size, label_smoothing, clip_layer_norm, clip_global_norm, ema, passes,
  nonfinite, feedback_delay, window, prefetch, host_memory, activation_memory, data_path, transport,
  port, timeout_seconds, silence_seconds, keep_checkpoints, validate_batches, ...
"""


DEFAULTS: dict[str, Any] = {
    "scale": "tiny", "steps": 100, "seed": 0, "sampler": "uniform", "policy": "csp", "bulk": 0,
    "streams": "1",
}  # fmt: skip
"""Of what defines a run; what is said of its execution has its defaults there."""

EXECUTION = (
    "stages", "recompute", "order", "partition", "device", "memory_budget", "digests",
    "checkpoint_every", "max_restarts", "tensorboard", "validate_every", "validate_subnets",
)  # fmt: skip


def given_execution(execution: Execution, arguments: argparse.Namespace) -> Execution:
    """The execution with the options that are given."""
    found = {name: getattr(arguments, name) for name in EXECUTION}
    return execution.changed(**{name: v for name, v in found.items() if v is not None})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.epilog = _EXAMPLE
    _add_definition(parser)
    _add_execution(parser)
    _add_validation(parser)


def _add_definition(parser: argparse.ArgumentParser) -> None:
    """What the bits of the result depend on."""
    parser.add_argument(
        "space", metavar="SPACE", nargs="?", help="a space by name, or MODULE:ATTRIBUTE"
    )
    parser.add_argument("--scale", help="tiny, small or paper (default: tiny)")
    parser.add_argument("--steps", type=_whole, metavar="S", help="subnets to train (default: 100)")
    parser.add_argument("--seed", type=_whole, metavar="K")
    parser.add_argument("--sampler", metavar="NAME")
    parser.add_argument(
        "--policy",
        help="synchronisation: csp (the plain loop's bits), or a baseline: bsp (GPipe), asp "
        "(PipeDream), sequential",
    )
    parser.add_argument(
        "--bulk", type=_whole, metavar="N", help="of bsp (default: as many as stages)"
    )
    parser.add_argument(
        "--streams",
        metavar="K|FILE",
        help="runs that share the pipeline: K seeds, or one JSON object a line",
    )
    parser.add_argument("--data", metavar="NAME", help="a data set, or MODULE:FUNCTION")
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help="where prepared data is kept")
    parser.add_argument(
        "--recipe", metavar="NAME|FILE", help="how to train: a recipe of naspipe's or a TOML file"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="any other setting"
    )


def _add_execution(parser: argparse.ArgumentParser) -> None:
    """How the run is carried out."""
    parser.add_argument("--stages", type=_whole, metavar="N", help="stage processes (default: 1)")
    parser.add_argument(
        "--order",
        help="dispatch order: paper, critical-path or auto (the faster, simulated)",
    )
    parser.add_argument(
        "--partition",
        help="balanced (each subnet its own; layers are mirrored) or static (one for all)",
    )
    parser.add_argument("--device", help="cpu, cuda or cuda:N")
    parser.add_argument(
        "--memory-budget",
        metavar="BYTES",
        help="what layers may occupy on each stage's device: 512MiB, or 3x for three subnets",
    )
    parser.add_argument(
        "--recompute", action="store_true", default=None, help="keep only each block's input"
    )
    parser.add_argument(
        "--digests",
        action="store_true",
        default=None,
        help="record a digest of the bytes of every WRITE",
    )
    parser.add_argument(
        "--checkpoint-every", type=_whole, metavar="N", help="subnets from one to the next"
    )
    parser.add_argument(
        "--max-restarts",
        type=_whole,
        metavar="N",
        help="how often a run whose stage failed goes on by itself from its last checkpoint",
    )
    parser.add_argument(
        "--resume",
        type=Path,
        metavar="RUN",
        help="go on with a run from its newest checkpoint, on as many stages as you like",
    )
    parser.add_argument("--run-dir", type=Path, metavar="DIR", help="default: runs/SPACE-TIME")
    parser.add_argument(
        "--tensorboard",
        action="store_true",
        default=None,
        help="write RUN/tensorboard/, beside RUN/metrics.jsonl (needs the extra tensorboard)",
    )
    parser.add_argument(
        "--log-every",
        type=_seconds,
        default=10.0,
        metavar="SECONDS",
        help="from one line of progress to the next, where there is no terminal (default: 10)",
    )
    parser.add_argument("--quiet", action="store_true", help="no progress")


def _add_validation(parser: argparse.ArgumentParser) -> None:
    """How the supernet is judged on the way."""
    parser.add_argument(
        "--validate-every",
        type=_whole,
        metavar="N",
        help="judge a few subnets on held-out data every N steps, behind a checkpoint; changes no "
        "bit of the training",
    )
    parser.add_argument(
        "--validate-subnets",
        metavar="K|file:PATH",
        help="so many, drawn from the seed (default: 4), or one JSON list of choices a line",
    )
    parser.add_argument(
        "--validation",
        metavar="MODULE:FUNCTION",
        help="held-out batches of your own (default: the data's split valid)",
    )


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a whole number, found {text!r:.80}") from None


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < math.inf:
        raise argparse.ArgumentTypeError(f"expected seconds, 0 or more, found {text!r:.80}")
    return seconds
