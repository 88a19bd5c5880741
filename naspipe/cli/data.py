"""``naspipe data``: fetch and prepare data sets, and list them.

Other commands use this module for data sets that they need and that are not there yet: these are
prepared, and the command goes on.
"""

from __future__ import annotations

import argparse
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

from naspipe.cli.options import Options, add_options
from naspipe.config.errors import NotPreparedError

# The command


_EPILOG = """\
examples:
  naspipe data list
  naspipe data prepare en-de-2k
  naspipe data prepare en-de-2k --from ~/Downloads   (contains the two .deb files)
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = (
        "Fetch and prepare data sets. Each one is fetched once and kept in a cache."
    )
    parser.epilog = _EPILOG
    actions = parser.add_subparsers(dest="data_action", required=True, metavar="ACTION")

    prepare = actions.add_parser(
        "prepare",
        help="fetch and prepare a data set unless it is already prepared",
        description="Fetch and prepare a data set. If it is already prepared, verify it and report "
        "that it is.",
    )
    add_options(prepare, "name NAME  name of a data set, as listed by 'naspipe data list'")
    prepare.add_argument(
        "--from",
        dest="source",
        type=Path,
        metavar="PATH",
        help="use local files instead of downloading: a .deb file, or a directory with .deb "
        "files or their unpacked contents",
    )
    add_options(prepare, "--force  prepare the data set again")
    _add_data_dir(prepare)

    _add_data_dir(actions.add_parser("list", help="list the available data sets"))


def _add_data_dir(parser: argparse.ArgumentParser) -> None:
    add_options(
        parser,
        """
        --data-dir DIR  directory of prepared data (default: naspipe/data in $XDG_CACHE_HOME or
            ~/.cache)
        """,
    )


def run(arguments: argparse.Namespace) -> int:
    from naspipe.data import registry
    from naspipe.data.cache import ConsoleProgress

    root = None if arguments.data_dir is None else arguments.data_dir.expanduser().absolute()
    if arguments.data_action == "list":
        for entry in registry.entries():
            if entry.build is None:
                state = "no preparation needed"
            else:
                state = "ready" if registry.is_prepared(entry.name, root) else "not prepared"
            print(f"{entry.name:18} {entry.summary} ({state})")
        return 0
    name = arguments.name
    source = None if arguments.source is None else arguments.source.expanduser().absolute()
    with ConsoleProgress() as progress:
        place = registry.prepare(
            name, root=root, source=source, force=arguments.force, progress=progress
        )
    if place is None:
        print(f"{name}: needs no preparation")
        return 0
    record = registry.read_record(name, root)
    counts = ", ".join(f"{key} {count:,}" for key, count in sorted(record["counts"].items()))
    print(f"{name}: ready in {place}\n  from {record['version']}\n  {counts}")
    return 0


# Data sets that another command needs


def add_data_place(parser: Options) -> None:
    """Declare the directory of data sets, and whether missing ones are prepared."""
    add_options(
        parser,
        """
        --data-dir DIR  directory of prepared data
        --no-prepare    fail if a data set is not prepared (default: prepare it, except under
            torchrun)
        """,
    )


def run_with_data(run: Callable[[Namespace], int], arguments: Namespace) -> int:
    """Run a command; restart it whenever a data set that it needs has been prepared.

    Data are opened before anything is written.
    """
    prepared: set[str] = set()
    while True:
        try:
            return run(arguments)
        except NotPreparedError as missing:
            if getattr(arguments, "no_prepare", True) or missing.name in prepared:
                raise
            from naspipe.data import registry
            from naspipe.data.cache import ConsoleProgress
            from naspipe.launch.hosts import Worker

            if Worker.find() is not None:
                raise  # otherwise every worker of every host would prepare it
            print(
                f"naspipe: data set '{missing.name}' is not prepared yet; it will be in "
                f"{missing.root} (once; --no-prepare refuses instead)",
                file=sys.stderr,
            )
            with ConsoleProgress() as progress:
                registry.prepare(missing.name, root=missing.root, progress=progress)
            prepared.add(missing.name)
