"""Write one HTML page that shows what runs did: timeline, waits, losses, access order, balance.

The page needs neither a network nor a server: open it in any browser. With --trace, the timeline of
each run is also written next to its logs as trace.json, for https://ui.perfetto.dev. For a run on
groups, the page shows when each sum of gradients was sent from group to group, and a line of output
reports how long stages waited. Teachers that joined and left (--labels service) are shown as bars
above the timeline, with what each of them did.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from naspipe.cli.options import add_options
from naspipe.config.errors import ConfigError

_EXAMPLE = """\
examples:
  naspipe report runs/two                        writes runs/two/report.html
  naspipe report runs/one runs/two -o both.html  compares runs, with the tables side by side
  naspipe report runs/two --from 90 --to 95      the records of six steps, all of them drawn
  naspipe report runs/two --trace                also writes runs/two/trace.json

Runs that failed or are still active are reported up to their last records. For a long run, the
page contains the numbers and losses of all steps, but the records of only some steps; use --from
and --to to show others.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EXAMPLE
    add_options(
        parser,
        """
        runs RUN+         run directory
        -o --output FILE  page to write; an existing file is replaced (default: report.html in the
            first RUN)
        """,
    )
    parser.add_argument(
        "--from",
        dest="first",
        type=int,
        metavar="STEP",
        help="first step whose records are shown (default: for a long run, some steps in its "
        "middle)",
    )
    parser.add_argument(
        "--to", dest="last", type=int, metavar="STEP", help="last step whose records are shown"
    )
    add_options(parser, "--trace  also write trace.json to each run directory")


def run(arguments: argparse.Namespace) -> int:
    """Write the page, and traces if requested; print their paths, and a line on sums of groups."""
    from naspipe.report.chrome_trace import write_chrome_trace
    from naspipe.report.recorded import Asked, read_run
    from naspipe.report.run_tables import reduction_line, run_tables, write_page
    from naspipe.report.summary import agreement

    paths: list[Path] = arguments.runs
    output: Path = arguments.output or paths[0] / "report.html"
    names = _names(paths)
    asked = Asked(arguments.first, arguments.last)
    recorded = [read_run(path, asked) for path in paths]
    if output.is_dir():
        raise ConfigError(f"-o {output}: expected a file to write, found a directory")
    if not output.parent.is_dir():
        raise ConfigError(
            f"-o {output}: expected {output.parent} to be a directory, found none; make it first"
        )
    tables = [run_tables(each, name) for each, name in zip(recorded, names, strict=True)]
    for table, each in zip(tables[1:], recorded[1:], strict=True):
        table["agreement"] = agreement(recorded[0], each)
    title = f"{recorded[0].labels.name}: {', '.join(names)}"
    try:
        write_page(output, title, tables)
        print(output)
        for each in recorded if arguments.trace else ():
            write_chrome_trace(each.path / "trace.json", each)
            print(each.path / "trace.json")
        for line in filter(None, map(reduction_line, tables)):
            print(line)
    except OSError as error:
        raise ConfigError(
            f"cannot write {error.filename or output}: {error.strerror}; choose another place "
            f"with -o{', or leave out --trace' if arguments.trace else ''}"
        ) from error
    return 0


def _names(paths: Sequence[Path]) -> list[str]:
    """Return the name of each run on the page: its path relative to the common folder."""
    absolute = [path.resolve() for path in paths]
    for place, path in enumerate(absolute):
        if path in absolute[:place]:
            raise ConfigError(f"{paths[place]} is named twice; expected each RUN once")
    base = Path(os.path.commonpath([path.parent for path in absolute]))
    return [str(path.relative_to(base)) for path in absolute]
