"""What the names of a distillation stand for: the teacher's blocks, the students and the data."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from naspipe.config.errors import ConfigError

if TYPE_CHECKING:
    from torch import nn

    from naspipe.cli.distilling.asked import Source
    from naspipe.cli.sources.run_source import RunSource
    from naspipe.config.space import Space
    from naspipe.frontend.given.students import Students
    from naspipe.frontend.training.distilled import Blockwise
    from naspipe.runtime.jobs.workload import Batches


class Found(NamedTuple):
    """Of a distillation."""

    teachers: list[nn.Module]
    students: Students
    data: Batches


def find(source: Source, data_dir: Path | None) -> Found:
    """The teacher's blocks, the students and the data.

    Raises:
        ConfigError: for a name that cannot be found, or a teacher that nobody knows how to cut.
    """
    import search_spaces
    from naspipe.cli.teaching.teacher import find_teacher
    from naspipe.config.rules import parse_rule
    from naspipe.frontend.given.students import find_students

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
        """Held-out batches of the same data, or a user's own.

        Raises:
            ConfigError: when there are none.
        """
        import search_spaces
        from naspipe.frontend.given.held_out import find_held_out

        space, scale, data, sizes = _source_of_teacher(self.source)
        if data is None and own is None:
            data = search_spaces.defaults(space, scale).data
        return find_held_out(
            space, scale, data or "", root=data_dir, split=split, own=own, sizes=sizes
        )

    @property
    def loss(self) -> Any:
        """Of the network that the teacher is, where that has a name."""
        import search_spaces

        named = _source_of_teacher(self.source)
        is_named = named.space in search_spaces.networks()
        return search_spaces.defaults(named.space, named.scale).loss() if is_named else None


def read_distilled(path: Path, data_dir: Path | None) -> Distilled:
    """A distillation, with the teacher, students and data that its command line named.

    Raises:
        ConfigError: when ``naspipe distill`` has left none there.
    """
    from naspipe.cli.distilling.asked import Source
    from naspipe.frontend.training.distilled import Blockwise
    from naspipe.trace.results.run_directory import RunDirectory

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
    """A file of weights does not say what it is: its layers must be those of the network.

    Raises:
        ConfigError: naming the first layer that is another one.
    """
    told = f"{source.teacher}: expected the layers of {expected.name}"
    told += f" at the scale {source.scale or 'tiny'}"
    if len(found) != len(expected):
        raise ConfigError(
            f"{told}, {len(expected)}, found {len(found)}; give the --network and the --scale that "
            f"it was exported from"
        )
    for position in range(len(found)):
        own, other = (_shapes(space, position) for space in (found, expected))
        if own != other:
            raise ConfigError(
                f"{told}, found layer {position} with tensors of {_said(own)}, not {_said(other)}; "
                f"give the --network and the --scale that it was exported from"
            )


def _shapes(space: Space, position: int) -> list[tuple[int, ...]]:
    from naspipe.runtime.sketching.layer_sizes import sketch

    values = sketch(space, position, 0).state_dict().values()
    return [tuple(each.shape) for each in values if hasattr(each, "shape")]


def _said(shapes: list[tuple[int, ...]]) -> str:
    return f"{' and '.join(map(str, shapes)) or 'no shape':.80}"


def _source_of_teacher(source: Source) -> RunSource:
    """What the teacher was trained on, and what is said in place of that."""
    from naspipe.cli.sources.run_source import RunSource, run_source
    from naspipe.trace.results.run_directory import RunDirectory

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
    """Of the teacher's batch sizes, unless others are given."""
    import search_spaces
    from naspipe.frontend.given.workloads import find_data, find_workload

    if named.space in (*search_spaces.networks(), *search_spaces.names()):
        return find_workload(*named[:3], data_dir, named.sizes).data
    if named.data is None:
        raise ConfigError(
            "--data: expected a data set, or MODULE:FUNCTION, for a teacher without a name, found "
            "none; give it, or --network NAME"
        )
    return find_data(named.data, data_dir, named.sizes)
