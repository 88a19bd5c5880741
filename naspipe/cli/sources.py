"""Find the space, the data and the loss of a finished run, and held-out batches for its subnets.

The names are from the run's manifest or from the command line.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from naspipe.cli.data import add_data_place
from naspipe.cli.options import Options, add_options
from naspipe.config.errors import ConfigError

if TYPE_CHECKING:
    from naspipe.inputs.run import Run
    from naspipe.jobs.losses import Loss
    from naspipe.jobs.workload import Batches


# A run whose subnets are judged


class JudgedRun(NamedTuple):
    """A run with its data and loss, and held-out batches for judging its subnets."""

    run: Run
    data: Batches
    loss: Loss
    held_out: Batches
    validation: int
    """Number of held-out batches for judging."""


def add_held_out(parser: Options) -> None:
    add_options(
        parser,
        """
        --validate V  number of held-out batches to evaluate on; 0 for all (default: 8, or all if
            there are fewer)
        --split [valid]  split of the data to evaluate on: valid or test
        --validation MODULE:FUNCTION  function that returns your own held-out batches
        """,
    )


def add_judged_run(parser: argparse.ArgumentParser) -> None:
    """Declare the options that :func:`judged_run` reads, except for the run."""
    add_held_out(parser)
    add_options(
        parser,
        """
        --space MODULE:ATTRIBUTE  search space of a run that trained your own space
        --data NAME  data of a run that trained on your own data
        """,
    )
    add_data_place(parser)


def judged_run(arguments: argparse.Namespace) -> JudgedRun:
    """Return the run that ``arguments.run`` names, with its loss."""
    from naspipe.inputs.held_out import find_held_out, judged_by
    from naspipe.inputs.named import as_trained, find_workload, run_loss
    from naspipe.inputs.run import Run
    from naspipe.store.run_directory import RunDirectory

    directory = RunDirectory(arguments.run)
    manifest = directory.read_manifest()
    space, scale, data, sizes = run_source(arguments, manifest)
    named = find_workload(space, scale, data, arguments.data_dir, sizes)
    named = as_trained(named, manifest)
    held_out = find_held_out(
        space,
        scale,
        data or str(manifest["definition"]["data"]["name"]),
        root=arguments.data_dir,
        split=arguments.split,
        own=arguments.validation,
        sizes=sizes,
    )
    _, count = judged_by(named.data, held_out, arguments.validate)
    loss = run_loss(named, directory, (data, space))
    return JudgedRun(Run(named.space, arguments.run), named.data, loss, held_out, count)


# Space and data of a run


class RunSource(NamedTuple):
    """Names for :func:`naspipe.inputs.named.find_workload`."""

    space: str
    scale: str
    data: str | None
    """None if a user's own space was trained from Python, and no data are given."""
    sizes: dict[str, int]


def run_source(arguments: argparse.Namespace, manifest: Mapping[str, Any]) -> RunSource:
    """Return the names in the run's manifest, unless ``--space`` or ``--data`` override them."""
    import search_spaces

    definition, source = manifest["definition"], manifest.get("source") or {}
    space = arguments.space or source.get("space") or definition["space"]
    is_named = space in (*search_spaces.names(), *search_spaces.networks())
    if ":" not in space and not is_named:
        raise ConfigError(
            f"run {arguments.run} trained {space}, a space of your own: expected --space "
            f"MODULE:ATTRIBUTE and --data MODULE:FUNCTION; a script is a module of its file's name"
        )
    data = arguments.data or source.get("data")
    if is_named and data is None:
        data = str(definition["data"]["name"])
    scale = source.get("scale") or definition.get("scale") or "tiny"
    return RunSource(space, scale, data, dict(source.get("sizes") or {}))
