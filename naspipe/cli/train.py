"""Train a supernet on one or more stages and write a run directory.

The bits of the result depend on the definition (space, data, recipe, seed, steps, sampler) and
never on the stages, the partition, recompute or the timing of messages.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from naspipe.cli import teacher
from naspipe.cli.data import add_data_place
from naspipe.cli.options import Options, add_flags, add_options, flags, given, key_list
from naspipe.cli.output import add_json, as_json, tell, trained
from naspipe.cli.teacher import with_momentum, with_teacher
from naspipe.config.definition import Definition, Settings, apply_settings
from naspipe.config.errors import ConfigError
from naspipe.config.execution import Execution
from naspipe.config.recipe import Recipe
from naspipe.config.settings import declared
from naspipe.config.text import parse_json
from naspipe.plan.costs import AUTO

if TYPE_CHECKING:
    from naspipe.api.training import Training
    from naspipe.jobs.workload import Workload
    from naspipe.launch.hosts import Worker


# Streams: several concurrent runs, from a number or from a file


MAX_STREAMS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """Properties that may differ between streams that share a pipeline."""

    space: str
    scale: str
    data: str | None
    seed: int
    steps: int
    sampler: str


def parse_streams(text: str, arguments: argparse.Namespace) -> list[StreamOptions]:
    """Parse a number of streams with consecutive seeds, or a file with one stream per line.

    Each line is a JSON object with some of ``space``, ``scale``, ``data``, ``seed``, ``steps`` and
    ``sampler``; the others are the command's.
    """
    given = StreamOptions(
        **{field.name: getattr(arguments, field.name) for field in fields(StreamOptions)}
    )
    if text.isascii() and text.lstrip("-").isdigit() and len(text) < 20:
        count = int(text)
        if not 1 <= count <= MAX_STREAMS:
            raise ConfigError(f"--streams: expected 1 to {MAX_STREAMS} or a file, found {text}")
        return [replace(given, seed=given.seed + number) for number in range(count)]
    try:
        lines = Path(text).read_text("utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"--streams: expected a number or a file with a JSON object a line, found {text!r:.80}"
            f" ({error})"
        ) from None
    kinds = {"seed": int, "steps": int}
    known = [field.name for field in fields(StreamOptions)]
    streams = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found: Any = parse_json(line)
        except ValueError:
            found = None
        if not isinstance(found, dict) or any(
            key not in known or type(value) is not kinds.get(key, str)
            for key, value in found.items()
        ):
            raise ConfigError(
                f"{text}:{number}: expected a JSON object with some of {', '.join(known)}, found "
                f"{line!r:.80}"
            )
        streams.append(replace(given, **found))
    if not 1 <= len(streams) <= MAX_STREAMS:
        raise ConfigError(
            f"--streams {text}: expected 1 to {MAX_STREAMS} streams, found {len(streams)}"
        )
    return streams


# The arguments


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

spaces: nlp.c0 nlp.c1 nlp.c2 nlp.c3 cv.c1 cv.c2 cv.c3, or your own MODULE:ATTRIBUTE
plain networks: vgg8 vgg16 vgg19 resnet50 resnet101 resnet152 mobilenet-v2 mobilenet-v3 bert-base
  bert-mini distil-bert vit cnn byol moco-v3
samplers: uniform, fair, spaced:W, file:PATH (one JSON list of choices per line), only:0,3,1
streams: --streams 2 trains seeds K and K + 1 in parallel, each as it would be trained alone; a file
  has one line per stream, such as {"space": "nlp.c3", "seed": 1, "steps": 50}; options that a line
  omits are taken from the command line
recipes: spos, fairnas, greedynas, sandwich, evolved-transformer, nasbench201, byol, moco-v3,
  soft-target, distil-bert, blockwise, blockwise-compress, dna, fine-tune (naspipe/recipes/), or
  your own TOML file; a recipe overrides the defaults of the space, and --sampler and --set override
  the recipe
"""

DEFAULTS: dict[str, Any] = {each.key: each.usual for each in flags(Definition)} | {"streams": "1"}
"""Defaults of the options that define a run."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EXAMPLE + key_list(Execution)
    add_options(parser, "space SPACE?  name of a space, or MODULE:ATTRIBUTE")
    definition = parser.add_argument_group("training")
    add_flags(definition, flags(Definition))
    add_options(
        definition,
        """
        --streams K|FILE  runs that share the pipeline: K seeds, or a file with one JSON object per
            line
        --data NAME       name of a data set, or MODULE:FUNCTION
        """,
    )
    add_data_place(definition)
    add_options(
        definition,
        "--recipe NAME|FILE  training recipe: name of a recipe of naspipe, or a TOML file",
    )
    teacher.add_arguments(definition)
    add_options(definition, "--set KEY=VALUE...  any setting listed below")
    execution = parser.add_argument_group("execution, which changes no bit of the result")
    add_flags(execution, flags(Execution), words={"stages": AUTO})
    add_options(
        execution,
        """
        --validation MODULE:FUNCTION  function that returns your own held-out batches (default: the
            valid split of the data)
        """,
    )
    add_run(parser.add_argument_group("run directory and output"))


def add_run(parser: Options, name: str = "SPACE") -> None:
    """Declare options on run directory and progress; ``name`` is in the default directory."""
    add_options(
        parser,
        f"""
        --run-dir DIR       run directory (default: runs/{name}-TIME)
        --resume RUN        resume a run from its newest checkpoint, on any number of stages
        --resume-if-exists  resume the run in --run-dir, or start it if it does not exist yet: one
            command for the first start and for every restart
        """,
    )
    parser.add_argument(
        "--log-every",
        type=_seconds,
        default=10.0,
        metavar="SECONDS",
        help="interval between progress lines when there is no terminal (default: 10)",
    )
    add_options(parser, "--quiet  do not show progress")
    add_json(parser, "the run directory: status, steps, loss and measurements")


def resume_of(arguments: argparse.Namespace) -> bool | str:
    """Return the ``resume`` of :func:`naspipe.train` for a command line."""
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


# The command


def run(arguments: argparse.Namespace) -> int:
    """Train; print the run directories on stdout. Under torchrun, act as one of its workers."""
    from naspipe.launch.hosts import Worker

    worker = Worker.find()
    training = carry_out(arguments, worker)
    if worker is None or worker.rank == 0:
        if arguments.json:
            tell(as_json(trained(training.directories)))
        for directory in () if arguments.json else training.directories:
            tell(str(directory.path))
    return 0


def carry_out(
    arguments: argparse.Namespace,
    worker: Worker | None = None,
    act: Callable[[Training], None] | None = None,
) -> Training:
    """Define the training of a command line, and run it or call ``act`` with it."""
    from naspipe.api.observers import training_progress
    from naspipe.api.training import start
    from naspipe.api.workers import execution_of, refusal_told
    from naspipe.wire.reports import NotesToStderr

    with refusal_told(worker):
        if chooses_stages := arguments.stages == AUTO:
            arguments.stages = None
            if any(each.startswith("stages=") for each in arguments.set):
                raise ConfigError(
                    f"--stages {AUTO}: expected no --set stages=N beside it; leave one of them out"
                )
        execution, workloads, sources = _defined(arguments)
        workloads, sources, teacher = with_teacher(arguments, workloads, sources)
        if worker is not None:
            execution = execution_of(worker, execution, arguments.stages)
    return start(
        workloads,
        execution,
        arguments.resume or arguments.run_dir,
        watch=partial(
            training_progress, is_quiet=arguments.quiet, every_seconds=arguments.log_every
        ),
        resume=resume_of(arguments),
        teacher=teacher,
        on_choice=NotesToStderr().on_note if chooses_stages else None,
        sources=sources,
        name="-".join(dict.fromkeys(each.space.name for each in workloads)).replace(":", "-"),
        worker=worker,
        carry_out=act,
    )


def _defined(
    arguments: argparse.Namespace,
) -> tuple[Execution, list[Workload], list[dict[str, Any]]]:
    """Return the execution, each stream's workload and its source; from a resumed run, if any."""
    from naspipe.config.recipe_file import NO_RECIPE, read_recipe
    from naspipe.inputs.named import find_workload
    from naspipe.inputs.strategies import check_draws

    if arguments.resume:
        return read_resumed(arguments.resume, arguments)
    file = NO_RECIPE if arguments.recipe is None else read_recipe(arguments.recipe)
    arguments.sampler = arguments.sampler or file.sampler
    for name, default in DEFAULTS.items():
        if getattr(arguments, name) is None:
            setattr(arguments, name, default)
    if arguments.space is None:
        raise ConfigError("expected a SPACE, or --resume RUN; see naspipe train --help")

    def settings_on(base: Settings) -> Settings:
        """Apply the recipe file, the options that are given, and ``--set``, in this order."""
        found = file.applied_to(base)
        execution = found.execution.changed(**given(Execution, arguments))
        found = apply_settings(replace(found, execution=execution), arguments.set)
        return with_momentum(found, arguments.momentum)

    found: dict[tuple[str, str, str | None], Workload] = {}
    workloads: list[Workload] = []
    sources: list[dict[str, Any]] = []
    streams = parse_streams(arguments.streams, arguments)
    settings = settings_on(Settings())
    sizes = dict(settings.data)
    for stream in streams:
        key = (stream.space, stream.scale, stream.data)
        if key not in found:
            named = find_workload(*key, arguments.data_dir, sizes)
            settings = settings_on(Settings(recipe=named.recipe))
            found[key] = named.redefined(settings.rules, recipe=settings.recipe)
        source = {
            "space": stream.space,
            "scale": stream.scale,
            "data": stream.data,
            "sizes": sizes,
            "recipe": arguments.recipe,
            "validation": arguments.validation,
            **({"momentum": dict(settings.momentum)} if settings.momentum else {}),
        }
        defined = found[key].redefined(
            seed=stream.seed,
            steps=stream.steps,
            sampler=stream.sampler,
            policy=arguments.policy,
            bulk=arguments.bulk,
        )
        check_draws(stream.sampler)
        if any(each.startswith("warmup_steps=") for each in arguments.set):
            defined.recipe.check_warmup(stream.steps)
        workloads.append(_completed(defined, settings.execution, source, arguments.data_dir))
        sources.append(source)
    return settings.execution, workloads, sources


def _completed(
    workload: Workload, execution: Execution, source: Mapping[str, Any], data_dir: Path | None
) -> Workload:
    """Return the workload with the strategy of its sampler, and with its held-out data."""
    from naspipe.inputs.held_out import held_out_for
    from naspipe.inputs.strategies import Asked, find_strategy_maker

    definition, delay = workload.definition, workload.recipe.feedback_delay
    asked = Asked(seed=definition.seed, delay=delay, subnets=definition.steps)
    return replace(
        workload,
        make_strategy=find_strategy_maker(definition.sampler, workload.space, asked),
        held_out=held_out_for(execution, source, data_dir),
    )


# Resuming a run from its directory


DEFINING = (*(each.key for each in flags(Definition)), "streams", "data", "recipe")
"""Options that define a run, so that a resume takes them from the run."""


def read_resumed(
    path: Path, arguments: argparse.Namespace
) -> tuple[Execution, list[Workload], list[dict[str, Any]]]:
    """Return the execution, the workloads and their sources; options given change the execution."""
    from naspipe.store.run_directory import RunDirectory

    refuse_beside_resume(arguments, ("space", *DEFINING, "run_dir"), path)
    if (path / "stream-0").is_dir():
        manifests = [RunDirectory(path / "stream-0").read_manifest()]
        count = int(manifests[0].get("execution", {}).get("streams", 1))
        places = [path / f"stream-{number}" for number in range(1, count)]
        manifests += [RunDirectory(each).read_manifest() for each in places]
    else:
        manifests = [RunDirectory(path).read_manifest()]
    execution = resumed_execution(manifests[0], path, arguments)
    workloads = [_recorded_workload(each, execution, path, arguments) for each in manifests]
    return execution, workloads, [each["source"] for each in manifests]


def refuse_beside_resume(arguments: argparse.Namespace, names: Iterable[str], path: Path) -> None:
    """Reject options that define the run, if one is resumed."""
    for name in names:
        if getattr(arguments, name) is not None:
            is_word = name in ("space", "teacher", "student")
            option = name.upper() if is_word else f"--{name.replace('_', '-')}"
            raise ConfigError(
                f"{option}: expected nothing beside --resume, which takes it from {path}; leave "
                f"it out"
            )


def resumed_execution(
    manifest: dict[str, Any], path: Path, arguments: argparse.Namespace
) -> Execution:
    """Return the recorded execution of a resumed run, changed by the options that are given.

    Settings that are newer than the manifest have their defaults.
    """
    execution = recorded_execution(manifest.get("requested"), path)
    recipe_free = Settings(execution=execution)
    settings = apply_settings(recipe_free, arguments.set)
    if replace(settings, execution=execution) != recipe_free:
        raise ConfigError("--set: expected settings of execution only, beside --resume")
    return settings.execution.changed(**given(Execution, arguments))


def recorded_execution(requested: Any, path: Path) -> Execution:
    """Return the execution of a run from its manifest."""
    if not isinstance(requested, dict) or not requested.keys() <= declared(Execution).keys():
        raise ConfigError(f"{path}: expected a run of this version, found other settings in it")
    try:
        return Execution(**requested)
    except ConfigError as error:
        raise ConfigError(f"{path}: its manifest is damaged: {error}") from error


def recorded_recipe(definition: dict[str, Any], path: Path) -> Recipe:
    try:
        return Recipe(**definition["recipe"])
    except ConfigError as error:
        raise ConfigError(f"{path}: its manifest is damaged: {error}") from error


def _recorded_workload(
    manifest: dict[str, Any], execution: Execution, path: Path, arguments: argparse.Namespace
) -> Workload:
    from naspipe.config.blocks import LOSS
    from naspipe.config.rules import parse_rule
    from naspipe.inputs.ends import END
    from naspipe.inputs.named import find_workload

    definition, source = manifest.get("definition"), manifest.get("source")
    if not source or not isinstance(definition, dict):
        raise ConfigError(
            f"{path} was not started by `naspipe train`: go on with naspipe.train(..., "
            f"run_dir={str(path)!r}, resume=True)"
        )
    if source.get("command") == "distill":
        raise ConfigError(
            f"{path} was started by `naspipe distill`: go on with naspipe distill --resume and "
            f"the folder that it is in"
        )
    try:
        scale, data = source["scale"], source["data"]
        sizes = source.get("sizes")
        named = find_workload(source["space"], scale, data, arguments.data_dir, sizes)
        said = definition["rules"].items()
        known = named.space.shared_rules
        rules = {n: parse_rule(text) for n, text in said if n in known or n not in (END, LOSS)}
        recipe = recorded_recipe(definition, path)
        identity = {
            key: definition[key] for key in ("seed", "steps", "sampler", "policy", "bulk", "scale")
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path}: its manifest is damaged: {error!r:.120}") from error
    defined = named.redefined(rules, recipe=recipe, **identity)
    own = arguments.validation or source.get("validation")
    return _completed(defined, execution, {**source, "validation": own}, arguments.data_dir)
