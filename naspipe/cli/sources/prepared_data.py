"""Data sets that a command needs and that are not there yet: it prepares them, and goes on."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

from naspipe.cli.ports import Options
from naspipe.config.errors import NotPreparedError


def add_data_place(parser: Options) -> None:
    """Declare where data sets are, and whether a missing one is prepared."""
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help="where prepared data is kept")
    parser.add_argument(
        "--no-prepare",
        action="store_true",
        help="refuse data that is not there (default: prepare it; never under torchrun)",
    )


def run_with_data(run: Callable[[Namespace], int], arguments: Namespace) -> int:
    """Carry a command out; it begins again when a data set that it asked for has been prepared.

    Data are opened before anything is written.

    Raises:
        NotPreparedError: for a command that prepares nothing.
    """
    prepared: set[str] = set()
    while True:
        try:
            return run(arguments)
        except NotPreparedError as missing:
            if getattr(arguments, "no_prepare", True) or missing.name in prepared:
                raise
            if _is_one_of_many():
                raise  # every worker of every host would
            _prepare(missing)
            prepared.add(missing.name)


def _is_one_of_many() -> bool:
    from naspipe.runtime.processes.rendezvous import Worker

    return Worker.find() is not None


def _prepare(missing: NotPreparedError) -> None:
    from naspipe.data import registry
    from naspipe.data.progress import ConsoleProgress

    print(
        f"naspipe: data set '{missing.name}' is not prepared yet; it will be in {missing.root} "
        f"(once; --no-prepare refuses instead)",
        file=sys.stderr,
    )
    with ConsoleProgress() as progress:
        registry.prepare(missing.name, root=missing.root, progress=progress)
