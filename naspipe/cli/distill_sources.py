"""Parse a distillation: its arguments, its settings, and the objects that its names refer to.

The settings come from the command line, or from the run to resume. The names refer to the teacher's
blocks, the students and the data.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from naspipe.cli.data import add_data_place
from naspipe.cli.options import add_flags, add_options, flags, given, key_list
from naspipe.cli.train import add_run, recorded_recipe, refuse_beside_resume, resumed_execution
from naspipe.config.definition import Definition, Settings, apply_settings
from naspipe.config.errors import ConfigError
from naspipe.config.execution import Execution
from naspipe.config.recipe import Recipe

if TYPE_CHECKING:
    from torch import nn

    from naspipe.api.distill import Blockwise
    from naspipe.cli.sources import RunSource
    from naspipe.config.space import Space
    from naspipe.distill.distillation import Distillation
    from naspipe.inputs.named import Students
    from naspipe.jobs.workload import Batches


# Objects by name


class Found(NamedTuple):
    """The objects that the names of a distillation refer to."""

    teachers: list[nn.Module]
    students: Students
    data: Batches


def find(source: Source, data_dir: Path | None) -> Found:
    """Find the teacher's blocks, the students and the data."""
    import search_spaces
    from naspipe.cli.teacher import find_teacher
    from naspipe.config.rules import parse_rule
    from naspipe.inputs.named import find_students

    teacher = find_teacher(Path(source.teacher), source.subnet, data_dir)
    named = _source_of_teacher(source)
    network = named.space if named.space in search_spaces.networks() else None
    cuts = source.cuts or (search_spaces.cuts(network) if network else ())
    if not cuts:
        raise ConfigError(
            f"--cuts: expected the layers of {source.teacher} with which its blocks begin, but the "
            f"first one, as in --cuts 3,6, found none for {named.space or 'an exported network'}; "
            f"give them, or --network NAME where it is an exported one of naspipe's"
        )
    data = _data(named, data_dir)
    info = getattr(data, "info", {})
    if network is not None and source.network is not None:
        _check_layers(teacher.space, search_spaces.build(network, named.scale, info), source)
    students = find_students(source.student, network, named.scale, info)
    rules = {name: parse_rule(text) for name, text in source.rules.items()}
    return Found(teacher.blocks(cuts), students.with_rules(rules), data)


class Distilled(NamedTuple):
    """A distillation from the command line, read back."""

    found: Blockwise
    source: Source

    def held_out(self, split: str, own: str | None, data_dir: Path | None) -> Batches:
        """Return held-out batches of the same data, or a user's own."""
        import search_spaces
        from naspipe.inputs.held_out import find_held_out

        space, scale, data, sizes = _source_of_teacher(self.source)
        if data is None and own is None:
            data = search_spaces.defaults(space, scale).data
        return find_held_out(
            space, scale, data or "", root=data_dir, split=split, own=own, sizes=sizes
        )

    @property
    def loss(self) -> Any:
        """The loss of the teacher as a network, if the network has a name."""
        import search_spaces

        named = _source_of_teacher(self.source)
        is_named = named.space in search_spaces.networks()
        return search_spaces.defaults(named.space, named.scale).loss() if is_named else None


def read_distilled(path: Path, data_dir: Path | None) -> Distilled:
    """Read a distillation, with the teacher, students and data that its command line named."""
    from naspipe.api.distill import Blockwise
    from naspipe.store.run_directory import RunDirectory

    said = RunDirectory(path / "block-0").read_manifest().get("source") or {}
    if said.get("command") != "distill":
        raise ConfigError(
            f"{path} was not started by `naspipe distill`: rate and combine its blocks with "
            f"naspipe.rate_blocks and naspipe.combine_blocks"
        )
    source = Source(**said)
    teachers, students, data = find(source, data_dir)
    losses = {"loss": students.loss, "last_loss": students.last_loss}
    return Distilled(Blockwise.of(path, teachers, students.blocks, data, **losses), source)


def _check_layers(found: Space, expected: Space, source: Source) -> None:
    """Reject an exported network with layers other than those of the named network."""
    from naspipe.checks.sketched import sketch

    def shapes(space: Space, position: int) -> list[tuple[int, ...]]:
        values = sketch(space, position, 0).state_dict().values()
        return [tuple(each.shape) for each in values if hasattr(each, "shape")]

    def said(shapes: list[tuple[int, ...]]) -> str:
        return f"{' and '.join(map(str, shapes)) or 'no shape':.80}"

    told = f"{source.teacher}: expected the layers of {expected.name}"
    told += f" at the scale {source.scale or 'tiny'}"
    todo = "give the --network and the --scale that it was exported from"
    if len(found) != len(expected):
        raise ConfigError(f"{told}, {len(expected)}, found {len(found)}; {todo}")
    for position in range(len(found)):
        own, other = (shapes(space, position) for space in (found, expected))
        if own != other:
            raise ConfigError(
                f"{told}, found layer {position} with tensors of {said(own)}, not {said(other)}; "
                f"{todo}"
            )


def _source_of_teacher(source: Source) -> RunSource:
    """Return the data of the teacher's training, or those given on the command line."""
    from naspipe.cli.sources import RunSource, run_source
    from naspipe.store.run_directory import RunDirectory

    path = Path(source.teacher)
    if (path / "model.json").is_file():
        scale, data = source.scale or "tiny", source.data
        found = RunSource(source.network or "", scale, data, {})
    else:
        if source.network is not None:
            raise ConfigError(
                f"--network: expected it beside an exported network only, found it beside the run "
                f"{path}, which says itself what it trained; leave it out"
            )
        nothing = argparse.Namespace(space=None, data=source.data, run=path)
        found = run_source(nothing, RunDirectory(path).read_manifest())
    return found._replace(scale=source.scale or found.scale, sizes={**found.sizes, **source.sizes})


def _data(named: RunSource, data_dir: Path | None) -> Any:
    """Return the data, with the teacher's batch sizes unless others are given."""
    import search_spaces
    from naspipe.inputs.named import find_data, find_workload

    if named.space in (*search_spaces.networks(), *search_spaces.names()):
        return find_workload(*named[:3], data_dir, named.sizes).data
    if named.data is None:
        raise ConfigError(
            "--data: expected a data set, or MODULE:FUNCTION, for a teacher without a name, found "
            "none; give it, or --network NAME"
        )
    return find_data(named.data, data_dir, named.sizes)


# The arguments of naspipe distill


_EXAMPLE = """\
examples:
  naspipe train mobilenet-v2 --steps 2000 --run-dir runs/teacher
  naspipe distill runs/teacher proxyless --steps 2000 --stages 2 --run-dir runs/student
  naspipe distill --resume runs/student --stages 1
  naspipe distill runs/mine mymodule:students --cuts 3,6

students: proxyless (for mobilenet-v2), separable (for vgg8, vgg16, vgg19), narrow-encoder (for
  bert-mini, bert-base), or your own MODULE:ATTRIBUTE: a list of spaces or modules, one for each
  block of the teacher, or a function that returns such a list; the module may define loss and
  last_loss
"""

DEFINING = ("scale", "seed", "steps", "sampler")
"""Settings of a definition that have an option of this command."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EXAMPLE + key_list(Execution)
    add_options(
        parser,
        """
        teacher TEACHER?  finished run, or exported network
        student STUDENT?  name of a student, or MODULE:ATTRIBUTE
        """,
    )
    definition = parser.add_argument_group("training")
    add_flags(definition, flags(Definition, *DEFINING))
    add_options(
        definition, "--data NAME  name of a data set, or MODULE:FUNCTION (default: the teacher's)"
    )
    add_data_place(definition)
    definition.add_argument(
        "--cuts",
        type=_positions,
        metavar="P,P,...",
        help="layers of the teacher at which its second block begins, its third block, ...",
    )
    add_options(
        definition,
        """
        --network NAME      name of the network of an exported TEACHER, as for naspipe train
        --teacher-subnet CHOICES  subnet of the teacher's supernet, as for naspipe train (default:
            last)
        --recipe NAME|FILE  training recipe (default: the student's)
        --set KEY=VALUE...  any setting listed below
        """,
    )
    execution = parser.add_argument_group("execution, which changes no bit of the result")
    add_flags(execution, flags(Execution))
    add_run(parser.add_argument_group("run directory and output"), "STUDENT")


def _positions(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"expected positions, as in 3,6,9, found {text!r:.80}"
        ) from None


# Settings of a distillation


_SETUP = (
    *DEFINING, "teacher", "student", "data", "recipe", "run_dir", "network", "cuts",
    "teacher_subnet",
)  # fmt: skip
"""Options that a resume takes from the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A distillation as given on the command line; in the manifest of each block."""

    teacher: str
    subnet: str
    network: str | None
    student: str
    scale: str | None
    data: str | None
    sizes: dict[str, int]
    cuts: list[int]
    rules: dict[str, str]
    command: str = "distill"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A distillation and its settings."""

    source: Source
    steps: int
    seed: int
    sampler: str
    recipe: Recipe
    execution: Mapping[str, Any]

    @property
    def recipe_fields(self) -> dict[str, Any]:
        """The recipe as a mapping, the form that the Python API takes."""
        return {each.name: getattr(self.recipe, each.name) for each in fields(Recipe)}

    def streams(self, found: Found) -> Distillation:
        """Define the streams to train."""
        from naspipe.api.distill import blockwise_streams
        from naspipe.distill.blockwise import DECOUPLED

        teachers, students, data = found
        return blockwise_streams(
            teachers,
            students.blocks,
            data,
            loss=students.loss,
            last_loss=students.last_loss,
            relay=self.execution.get("relay", DECOUPLED),
            steps=self.steps,
            seed=self.seed,
            sampler=self.sampler,
            recipe=self.recipe_fields,
        )


def read_asked(arguments: argparse.Namespace) -> Asked:
    """Read the settings from the command line."""
    import search_spaces
    from naspipe.config.recipe_file import NO_RECIPE, read_recipe

    if arguments.student is None:
        raise ConfigError("expected TEACHER and STUDENT, or --resume RUN; see naspipe distill -h")
    is_own = ":" in arguments.student
    usual = None if is_own else search_spaces.student_kind(arguments.student).recipe
    name = arguments.recipe or usual
    file = read_recipe(name) if name else NO_RECIPE
    settings = apply_settings(file.applied_to(Settings()), arguments.set)
    execution = settings.execution.changed(**given(Execution, arguments))
    _check_settings(settings, execution)
    source = Source(
        teacher=str(arguments.teacher),
        subnet=arguments.teacher_subnet or "last",
        network=arguments.network,
        student=arguments.student,
        scale=arguments.scale,
        data=arguments.data,
        sizes=dict(settings.data),
        cuts=arguments.cuts or [],
        rules={name: str(rule) for name, rule in settings.rules.items()},
    )
    usual_of = {each.key: each.usual for each in flags(Definition, *DEFINING)}
    said = {key: getattr(arguments, key) for key in DEFINING}
    said = {key: usual_of[key] if value is None else value for key, value in said.items()}
    keys = {word.partition("=")[0] for word in arguments.set} | given(Execution, arguments).keys()
    values = execution.as_dict()
    return Asked(
        source=source,
        steps=said["steps"],
        seed=said["seed"],
        sampler=arguments.sampler or file.sampler or said["sampler"],
        recipe=settings.recipe,
        execution={key: values[key] for key in values if key in keys},
    )


def _check_settings(settings: Settings, execution: Execution) -> None:
    if settings.momentum:
        raise ConfigError(
            "momentum: expected none, as TEACHER stays as it is, found some; leave it out"
        )
    if execution.validation.every_steps:
        raise ConfigError(
            "--validate-every: expected none, as no student block alone predicts a target, found "
            f"{execution.validation.every_steps}; leave it out"
        )


def read_resumed(arguments: argparse.Namespace) -> Asked:
    """Read the settings from a run; options that are given change the execution."""
    from naspipe.store.run_directory import RunDirectory

    path = arguments.resume
    refuse_beside_resume(arguments, _SETUP, path)
    manifest = RunDirectory(path / "block-0").read_manifest()
    execution = resumed_execution(manifest, path, arguments)
    _check_settings(Settings(), execution)
    recorded, definition = manifest.get("source") or {}, manifest.get("definition")
    if recorded.get("command") != "distill" or not isinstance(definition, dict):
        raise ConfigError(
            f"{path} was not started by `naspipe distill`: go on with "
            f"naspipe.distill_blockwise(..., run_dir={str(path)!r}, resume=True)"
        )
    try:
        source = Source(**recorded)
        said = {key: definition[key] for key in ("steps", "seed", "sampler")}
    except (KeyError, TypeError) as error:
        raise ConfigError(f"{path}: its manifest is damaged: {error!r:.120}") from error
    recipe = recorded_recipe(definition, path)
    return Asked(source=source, recipe=recipe, execution=execution.as_dict(), **said)
