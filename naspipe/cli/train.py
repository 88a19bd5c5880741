"""Train a supernet on one or several stages and write a run directory.

The bits of the result depend on the definition (space, data, recipe, seed, steps, sampler)
and never on the stages, the partition, recompute or the timing of messages.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from naspipe.cli.streams import StreamOptions
    from naspipe.core.config import Execution
    from naspipe.core.recipe_file import RecipeFile
    from naspipe.frontend.training import Training
    from naspipe.runtime.compute import Workload
    from naspipe.runtime.meeting import Worker

_EXAMPLE = """\
examples:
  naspipe train nlp.c1 --steps 100 --stages 2 --sampler spaced:8
  naspipe train cv.c3 --recipe spos --set lr=0.1
  naspipe train cv.c3 --set lr=0.01 --set optimizer.momentum=0.8 --set rule.stem=frozen
  naspipe train nlp.c1 --checkpoint-every 100 --run-dir runs/one; naspipe train --resume runs/one
  naspipe train mymodule:space --data mymodule:batches --stages 2
  torchrun --nnodes 2 --nproc-per-node 1 ... -m naspipe train nlp.c1 --run-dir /shared/one

spaces: nlp.c0 nlp.c1 nlp.c2 nlp.c3 cv.c1 cv.c2 cv.c3, or MODULE:ATTRIBUTE of your own
samplers: uniform, fair, spaced:W, file:PATH (one JSON list of choices a line)
streams: --streams 2 trains seeds K and K + 1 side by side, each as it would be alone; a file has
  one line per stream, as in {"space": "nlp.c3", "seed": 1, "steps": 50}; what a line leaves out
  is taken from the command
recipes: spos, fairnas, evolved-transformer (naspipe/recipes/), or a TOML file of yours; what it
  says goes before the space's defaults, --sampler and --set go before it
settings: lr, schedule, warmup_steps, precision, optimizer, optimizer.OPTION, rule.SHARED_LAYER,
  data.max_tokens, data.batch_size, label_smoothing, clip_layer_norm, clip_global_norm, ema, passes,
  feedback_delay, window, prefetch, host_memory, activation_memory, data_path, transport, port,
  timeout_seconds, silence_seconds, keep_checkpoints, ...
"""


_DEFAULTS: dict[str, Any] = {
    "scale": "tiny", "steps": 100, "seed": 0, "sampler": "uniform", "policy": "csp", "bulk": 0,
    "streams": "1",
}  # fmt: skip
"""Of what defines a run; what is said of its execution has its defaults there."""

_EXECUTION = (
    "stages", "recompute", "order", "partition", "device", "memory_budget", "digests",
    "checkpoint_every", "max_restarts", "tensorboard",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.epilog = _EXAMPLE
    _add_definition(parser)
    _add_execution(parser)


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


def run(arguments: argparse.Namespace) -> int:
    """Train; prints the run directories on stdout. Under torchrun, this is one of its workers."""
    from naspipe.core.errors import ConfigError
    from naspipe.frontend.workers import execution_of, refuse, train_as_worker
    from naspipe.runtime.meeting import Worker

    worker = Worker.find()
    try:
        execution, workloads, sources = _defined(arguments)
        if worker is not None:
            execution = execution_of(worker, execution, arguments.stages)
    except ConfigError as error:
        if worker is not None:
            refuse(worker, str(error))
        raise
    with _training(arguments, execution, workloads, sources, worker) as training:
        if worker is not None:
            has_place = bool(arguments.resume or arguments.run_dir)
            train_as_worker(training, worker, has_place=has_place)
        else:
            training.run()
    if worker is None or worker.rank == 0:
        for directory in training.directories:
            print(directory.path)
    return 0


@contextmanager
def _training(
    arguments: argparse.Namespace,
    execution: Execution,
    workloads: list[Workload],
    sources: list[dict[str, Any]],
    worker: Worker | None,
) -> Iterator[Training]:
    """The training, whose progress is shown while it goes on; by one of several workers."""
    from naspipe.cli.progress import TrainingProgress
    from naspipe.frontend.api import default_run_directory
    from naspipe.frontend.training import Training

    names = list(dict.fromkeys(workload.space.name for workload in workloads))
    path = arguments.resume or arguments.run_dir
    path = path or default_run_directory("-".join(names).replace(":", "-"))
    title = f"{' '.join(names)} on {execution.stages} stage{'s' if execution.stages > 1 else ''}"
    steps = sum(workload.definition.num_subnets for workload in workloads)
    quiet = arguments.quiet or (worker is not None and worker.rank > 0)
    with TrainingProgress(title, steps, quiet, arguments.log_every) as progress:
        yield Training(
            workloads=workloads,
            execution=execution,
            path=path,
            observer=progress,
            resumes=arguments.resume is not None,
            sources=sources,
        )


def _defined(
    arguments: argparse.Namespace,
) -> tuple[Execution, list[Workload], list[dict[str, Any]]]:
    """What is trained, and how; from the run where one is resumed."""
    from naspipe.cli.resume import read_resumed
    from naspipe.cli.streams import parse_streams
    from naspipe.core.config import Execution
    from naspipe.core.errors import ConfigError
    from naspipe.core.recipe_file import NO_RECIPE, read_recipe

    if arguments.resume:
        execution, workloads, sources = read_resumed(arguments.resume, arguments)
        execution = _given(execution, arguments)
        return execution, [replace(w, recompute=execution.recompute) for w in workloads], sources
    recipe = NO_RECIPE if arguments.recipe is None else read_recipe(arguments.recipe)
    arguments.sampler = arguments.sampler or recipe.sampler
    for name, default in _DEFAULTS.items():
        if getattr(arguments, name) is None:
            setattr(arguments, name, default)
    if arguments.space is None:
        raise ConfigError("expected a SPACE, or --resume RUN; see naspipe train --help")
    streams = parse_streams(arguments.streams, arguments)
    return _workloads(streams, _given(Execution(), arguments), recipe, arguments)


def _given(execution: Execution, arguments: argparse.Namespace) -> Execution:
    """The execution with the options that are given."""
    found = {name: getattr(arguments, name) for name in _EXECUTION}
    return replace(execution, **{name: v for name, v in found.items() if v is not None})


def _workloads(
    streams: Sequence[StreamOptions],
    execution: Execution,
    recipe: RecipeFile,
    arguments: argparse.Namespace,
) -> tuple[Execution, list[Workload], list[dict[str, Any]]]:
    """The execution with ``--set`` applied, what each stream trains, and its source.

    Raises:
        ConfigError: for a name that cannot be found or a value that does not fit.
    """
    from naspipe.core.config import Settings, apply_settings
    from naspipe.frontend.explorers import find_explorer
    from naspipe.frontend.training import define
    from naspipe.frontend.workloads import Named, find_workload
    from naspipe.runtime.compute import Workload

    found: dict[tuple[str, str, str | None], Named] = {}
    workloads: list[Workload] = []
    sources: list[dict[str, Any]] = []
    settings = apply_settings(recipe.applied_to(Settings(execution=execution)), arguments.set)
    sizes = dict(settings.data)
    for stream in streams:
        key = (stream.space, stream.scale, stream.data)
        if key not in found:
            named = find_workload(*key, arguments.data_dir, sizes)
            usual = Settings(recipe=named.recipe, execution=execution)
            settings = apply_settings(recipe.applied_to(usual), arguments.set)
            space = named.space.with_rules(settings.rules)
            found[key] = replace(named, space=space, recipe=settings.recipe)
        named = found[key]
        definition = define(
            named.space,
            named.data,
            named.loss,
            recipe=named.recipe,
            scale=stream.scale,
            seed=stream.seed,
            steps=stream.steps,
            sampler=stream.sampler,
            policy=arguments.policy,
            bulk=arguments.bulk,
        )
        workloads.append(
            Workload(
                space=named.space,
                data=named.data,
                loss=named.loss,
                definition=definition,
                recompute=settings.execution.recompute,
                explore=find_explorer(stream.sampler, named.space, stream.seed),
            )
        )
        source = {"space": stream.space, "scale": stream.scale, "data": stream.data}
        sources.append({**source, "sizes": sizes, "recipe": arguments.recipe})
    return settings.execution, workloads, sources
