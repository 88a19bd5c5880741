"""Train a supernet on one or several stages and write a run directory.

The bits of the result depend on the definition (space, data, recipe, seed, steps, sampler)
and never on the stages, the partition, recompute or the timing of messages.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from naspipe.cli.streams import StreamOptions
    from naspipe.core.config import Execution
    from naspipe.runtime.compute import Workload

_EXAMPLE = """\
examples:
  naspipe train nlp.c1 --steps 100 --stages 2 --sampler spaced:8
  naspipe train cv.c3 --set lr=0.01 --set optimizer.momentum=0.8 --set rule.stem=frozen
  naspipe train mymodule:space --data mymodule:batches --stages 2

spaces: nlp.c0 nlp.c1 nlp.c2 nlp.c3 cv.c1 cv.c2 cv.c3, or MODULE:ATTRIBUTE of your own
samplers: uniform, fair, spaced:W, file:PATH (one JSON list of choices a line)
streams: --streams 2 trains seeds K and K + 1 side by side, each as it would be alone; a file has
  one line per stream, as in {"space": "nlp.c3", "seed": 1, "steps": 50}; what a line leaves out
  is taken from the command
settings: lr, schedule, warmup_steps, precision, optimizer, optimizer.OPTION, rule.SHARED_LAYER,
  window, prefetch, host_memory, activation_memory, data_path, transport, port, timeout_seconds, ...
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.epilog = _EXAMPLE
    parser.add_argument("space", metavar="SPACE", help="a space by name, or MODULE:ATTRIBUTE")
    parser.add_argument("--scale", default="tiny", help="tiny, small or paper (default: tiny)")
    parser.add_argument("--stages", type=_whole, default=1, metavar="N", help="stage processes")
    parser.add_argument("--steps", type=_whole, default=100, metavar="S", help="subnets to train")
    parser.add_argument("--seed", type=_whole, default=0, metavar="K")
    parser.add_argument("--sampler", default="uniform", metavar="NAME")
    parser.add_argument(
        "--policy",
        default="csp",
        help="synchronisation: csp (the plain loop's bits), or a baseline: bsp (GPipe), asp "
        "(PipeDream), sequential",
    )
    parser.add_argument(
        "--bulk", type=_whole, default=0, metavar="N", help="of bsp (default: as many as stages)"
    )
    parser.add_argument(
        "--streams",
        default="1",
        metavar="K|FILE",
        help="runs that share the pipeline: K seeds, or one JSON object a line",
    )
    parser.add_argument(
        "--order",
        default="auto",
        help="dispatch order: paper, critical-path or auto (the faster, simulated)",
    )
    parser.add_argument(
        "--partition",
        default="balanced",
        help="balanced (each subnet its own; layers are mirrored) or static (one for all)",
    )
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument(
        "--memory-budget",
        default="",
        metavar="BYTES",
        help="what layers may occupy on each stage's device: 512MiB, or 3x for three subnets",
    )
    parser.add_argument("--recompute", action="store_true", help="keep only each block's input")
    parser.add_argument(
        "--digests", action="store_true", help="record a digest of the bytes of every WRITE"
    )
    parser.add_argument("--data", metavar="NAME", help="a data set, or MODULE:FUNCTION")
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help="where prepared data is kept")
    parser.add_argument("--run-dir", type=Path, metavar="DIR", help="default: runs/SPACE-TIME")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="any other setting"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress")


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a whole number, found {text!r:.80}") from None


def run(arguments: argparse.Namespace) -> int:
    """Train; prints the run directories on stdout."""
    from naspipe.cli.progress import TrainingProgress
    from naspipe.cli.streams import parse_streams
    from naspipe.core.config import Execution
    from naspipe.frontend.api import default_run_directory
    from naspipe.frontend.training import Training

    streams = parse_streams(arguments.streams, arguments)
    execution = Execution(
        stages=arguments.stages,
        recompute=arguments.recompute,
        order=arguments.order,
        partition=arguments.partition,
        device=arguments.device,
        memory_budget=arguments.memory_budget,
        digests=arguments.digests,
    )
    execution, workloads = _workloads(streams, execution, arguments)
    names = list(dict.fromkeys(workload.space.name for workload in workloads))
    path = arguments.run_dir or default_run_directory("-".join(names).replace(":", "-"))
    title = f"{' '.join(names)} on {execution.stages} stage{'s' if execution.stages > 1 else ''}"
    steps = sum(workload.definition.steps for workload in workloads)
    with TrainingProgress(title, steps, execution.stages, arguments.quiet) as progress:
        training = Training(workloads=workloads, execution=execution, path=path, observer=progress)
        training.run()
    for directory in training.directories:
        print(directory.path)
    return 0


def _workloads(
    streams: Sequence[StreamOptions], execution: Execution, arguments: argparse.Namespace
) -> tuple[Execution, list[Workload]]:
    """What each stream trains, and the execution with ``--set`` applied."""
    from naspipe.core.config import Settings, apply_settings
    from naspipe.frontend.training import define
    from naspipe.frontend.workloads import Named, find_workload
    from naspipe.runtime.compute import Workload

    found: dict[tuple[str, str, str | None], Named] = {}
    workloads: list[Workload] = []
    settings = Settings(execution=execution)
    for stream in streams:
        key = (stream.space, stream.scale, stream.data)
        if key not in found:
            named = find_workload(*key, arguments.data_dir)
            settings = apply_settings(
                Settings(recipe=named.recipe, execution=execution), arguments.set
            )
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
            )
        )
    return settings.execution, workloads
