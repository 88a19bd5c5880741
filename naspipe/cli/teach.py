"""Compute a network's labels for students, either into a file or as a teacher that serves runs.

With --to, the labels of the first batches are written once, for runs with --labels file:PATH. With
--registry, this process is an additional teacher, until Ctrl-C or SIGTERM, for every run that
requests the labels of this network. A label is a function of the network, the seed and the batch.
Therefore, where and when a label is computed changes no bit of a student.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from naspipe.cli.data import add_data_place
from naspipe.cli.options import add_options
from naspipe.cli.output import complain, tell
from naspipe.config.definition import Settings, apply_settings
from naspipe.config.errors import ConfigError
from naspipe.config.execution import Execution

if TYPE_CHECKING:
    from naspipe.distill.teachers import Teacher
    from naspipe.jobs.workload import Batches

_EXAMPLE = """\
examples:
  naspipe teach runs/large --to labels --batches 2000 --seed 1
  naspipe train cnn --teacher runs/large --labels file:labels --seed 1 --steps 2000
  naspipe teach runs/large --registry redis://head --host 10.0.0.7
  naspipe teach exported --registry tcp://head:29700 --host 10.0.0.7 --data mine:batches

A run admits a teacher by its public key. This command prints the key; add it as a line to the file
that the run's setting teacher_keys names. The key pair is kept in the --key file, which is for you
alone.
"""

_SIZES = ("batch_size", "max_tokens", "batches")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EXAMPLE
    add_options(
        parser,
        """
        teacher RUN|DIR  run directory, or exported subnet
        --subnet ID  subnet of a supernet's run: best, first, last, a step number, or choices such
            as 0,1,3 (default: last)
        """,
    )
    parser.add_argument(
        "--top",
        type=int,
        default=0,
        metavar="K",
        help="number of highest scores to keep, as given to the students by --teacher-top",
    )
    add_options(parser, "--data NAME  data of the students (default: the teacher's own)")
    add_data_place(parser)
    add_options(
        parser,
        """
        --set KEY=VALUE...  data sizes, such as data.batch_size=32, precision or threads
        --device [cpu]      device to compute on: cpu, cuda or cuda:N
        --quiet             do not show progress
        """,
    )
    add_options(
        parser.add_argument_group("writing a file"),
        """
        --to FILE     file to write; it must not exist yet
        --batches N   number of batches, counted from the first
        --seed K [0]  seed of the students
        """,
    )
    add_options(
        parser.add_argument_group("serving as a teacher"),
        """
        --registry URL              registry to join: redis://HOST, or tcp://HOST:PORT of a run
        --host ADDRESS [127.0.0.1]  address of this machine as seen by the students
        --port N [0]                port to listen on; 0 for any free port
        --stages K [1]              number of processes among which the network's blocks are divided
        --key FILE [~/.config/naspipe/teacher.key]  file with the key pair of this teacher
        --ttl SECONDS [6]           time without a sign of life after which this teacher is treated
            as gone
        --pace SECONDS [0]          minimum response time, for measurements
        """,
        key=Path,
        ttl=float,
        pace=float,
    )


def run(arguments: argparse.Namespace) -> int:
    """Write a file, or serve; return the exit status."""
    from naspipe.api.progress import Bar
    from naspipe.checks.machine import check_device
    from naspipe.cli.teacher import find_teacher
    from naspipe.distill.label_file import write_labels
    from naspipe.distill.label_service import Teaching, teach
    from naspipe.machine.gpus import find_gpus

    if (arguments.to is None) == (arguments.registry is None):
        raise ConfigError("naspipe teach: expected either --to FILE or --registry URL")
    device = arguments.device
    Execution(  # checks the options like settings of a run
        device=device,
        teacher_ttl=arguments.ttl,
        teacher_pace=arguments.pace,
        teacher_stages=arguments.stages,
    )
    check_device(device, 0 if device == "cpu" else len(find_gpus()))
    if not 0 <= arguments.port < 1 << 16:
        raise ConfigError(f"--port: expected 0 to 65535, found {arguments.port}")
    if arguments.to and not arguments.to.absolute().parent.is_dir():
        raise ConfigError(f"--to {arguments.to}: expected a folder that is there, found none")
    if arguments.to and arguments.batches is None:
        raise ConfigError("--to: expected --batches N with it, one for each pass of a run")
    recipe = apply_settings(Settings(), arguments.set).recipe

    def teacher() -> Teacher:
        subnet = arguments.subnet or "last"
        return find_teacher(arguments.teacher, subnet, arguments.data_dir, arguments.top)

    if arguments.registry:
        way = Teaching(
            registry=arguments.registry,
            host=arguments.host,
            port=arguments.port,
            key=arguments.key.expanduser(),
            device=device,
            stages=arguments.stages,
            threads=recipe.threads,
            ttl_seconds=arguments.ttl,
            pace_seconds=arguments.pace,
        )
        made = teach(teacher(), lambda record: _data(arguments, record), way, complain)
        complain(f"{made} labels made")
        return 0
    labels, data = teacher(), _data(arguments, _own_record(arguments.teacher))
    with Bar("labels", arguments.batches, arguments.quiet, 10.0) as bar:

        def on_label(number: int) -> None:
            bar.show()
            bar.update(number + 1, "")

        write_labels(
            labels,
            data,
            arguments.to,
            batches=arguments.batches,
            seed=arguments.seed,
            recipe=recipe,
            device=device,
            on_label=on_label,
        )
    tell(str(arguments.to))
    return 0


def _own_record(path: Path) -> Mapping[str, Any]:
    """Return the record of the data that the teacher was trained on; empty if unknown."""
    from naspipe.store.run_directory import RunDirectory

    if (path / "model.json").is_file():
        return {}
    return dict(RunDirectory(path).read_manifest()["definition"]["data"])


def _data(arguments: argparse.Namespace, record: Mapping[str, Any]) -> Batches:
    """Return the data of the command, or those that a record names; sizes are the record's."""
    from naspipe.inputs.named import find_data

    name = arguments.data or record.get("name")
    if not isinstance(name, str):
        raise ConfigError("naspipe teach: expected --data NAME, the students' data")
    is_known = name in (arguments.data, _own_record(arguments.teacher).get("name"))
    if ":" in name and not is_known:  # never import or open a name that only a student supplied
        raise ConfigError(
            f"a student's data are {name:.80}, which this teacher was not given; start it with "
            f"--data {name:.80}"
        )
    known = {size: record[size] for size in _SIZES if isinstance(record.get(size), int)}
    return find_data(
        name, arguments.data_dir, {**known, **apply_settings(Settings(), arguments.set).data}
    )
