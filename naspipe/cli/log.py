"""Print the reads (F) and writes (B) of each layer, in order, as in 2F-2B-5F-5B-7F-7B.

The numbers are sequence IDs: 2F is the forward of subnet 2, and 2B is the update after its
backward. For an elastic layer, each entry also shows the setting, as in 2F[512].
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from naspipe.cli.options import add_options
from naspipe.cli.output import add_json, as_json
from naspipe.config.errors import ConfigError, LogError
from naspipe.config.ids import LayerId
from naspipe.store.access_order import groups_of_layers, orders_of_parts, with_settings
from naspipe.store.access_segments import Wanted
from naspipe.store.compare import RecordedRun
from naspipe.store.losses import line_of, read_rows
from naspipe.streams.stream_file import read_stream

_EXAMPLE = """\
examples:
  naspipe log runs/two                 every layer that was used, one per line
  naspipe log runs/two --layer 3.1     candidate 1 of choice block 3
  naspipe log runs/two --layer head    a shared layer, by name
  naspipe log runs/nni --layer op0=1   the layer that a label of NNI selects, by label and value
  naspipe log runs/two --rows metrics  all rows of metrics; metrics.jsonl has only the newest

Long orders are shortened on a terminal, but not in a file or a pipe.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EXAMPLE
    add_options(
        parser,
        """
        run RUN        run directory
        --layer LAYER  layer to print: BLOCK.CANDIDATE, the name of a shared layer, or LABEL=VALUE
            of an NNI label; 1:3.1 is layer 3.1 of stream 1
        --full         print complete lines even if the terminal is too narrow for them
        """,
    )
    add_json(parser, "lines")
    parser.add_argument(
        "--rows",
        choices=("losses", "metrics"),
        help="print all losses or all rows of metrics instead, one JSON object per line",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the orders; return the exit status."""
    recorded = RecordedRun(arguments.run)
    if arguments.rows is not None:
        print_rows(getattr(recorded.directory, arguments.rows))
        return 0
    if arguments.json:
        print(as_json(_described(recorded, arguments.layer)))
        return 0
    has_width = sys.stdout.isatty() and not arguments.full
    width = shutil.get_terminal_size().columns if has_width else None
    if arguments.layer is None:
        for line in _lines(recorded, width):
            print(line)
        return 0
    layer = recorded.labels.layer(arguments.layer)
    order = dict(_orders(recorded, [layer])).get(layer, "")
    if not order:
        print(_unused(recorded, layer), file=sys.stderr)
    print(order if width is None else folded(order, width))
    return 0


def _unused(recorded: RecordedRun, layer: LayerId) -> str:
    """Report that no subnet used a layer, and which layers of its block were used."""
    labels = recorded.labels
    used = sorted(each for each in recorded.log.layers if each[:2] == layer[:2])
    said = f"naspipe: no subnet of {recorded.path} used {labels.full_label(layer)}"
    return f"{said}; of its block these were: {', '.join(map(labels.full_label, used)) or 'none'}"


def folded(order: str, width: int) -> str:
    """Return the beginning and the end of an order that does not fit into a line."""
    if len(order) <= width:
        return order
    steps = order.split("-")
    room = width - len(f"- … {len(steps):,} more (--full) … -")
    shown = max(1, room // (2 * (max(map(len, steps)) + 1)))
    left = len(steps) - 2 * shown
    if left <= 0:
        return order
    ends = "-".join(steps[:shown]), "-".join(steps[-shown:])
    return f"{ends[0]}- … {left:,} more (--full) … -{ends[1]}"


def print_rows(path: Path) -> None:
    """Print all rows of a file of lines, including archived ones."""
    try:
        for _, row in read_rows(path):
            sys.stdout.write(line_of(row).decode())
    except LogError as error:
        raise ConfigError(f"{error}; restore the file") from error
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: expected rows of a run, found {error.strerror}") from error


def _lines(recorded: RecordedRun, width: int | None) -> Iterator[str]:
    """Yield label, rule, number of WRITEs and order of each layer that was used, in chain order."""
    labels, counts = recorded.labels, recorded.log.layers
    names = {layer: labels.full_label(layer) for layer in counts}
    widest = max(map(len, names.values()), default=0)
    rule_width = max((len(labels.rule_text(layer)) for layer in counts), default=0)
    for group in groups_of_layers(counts):
        for layer, order in _orders(recorded, group):
            rule = labels.rule_text(layer)
            writes = order.count("B")
            line = f"{names[layer]:{widest}}  {rule:{rule_width}}  {writes:5}  {order}"
            yield line if width is None or len(line) <= width else f"{line[: width - 1]}…"


def _orders(recorded: RecordedRun, layers: Iterable[LayerId]) -> Iterator[tuple[LayerId, str]]:
    """Yield the orders of those layers that were used, in chain order."""
    wanted, labels = Wanted(layers=frozenset(layers), backwards=False), recorded.labels
    stream = read_stream(recorded.directory.stream) if labels.has_settings else []
    for layer, order in orders_of_parts(recorded.log.parts(wanted)):
        is_said = labels.has_settings and order
        setting = labels.settings(layer, stream)
        yield layer, with_settings(order, setting) if is_said else order


def _described(recorded: RecordedRun, label: str | None) -> list[dict[str, Any]]:
    """Return label, rule, number of WRITEs and order of each layer, or of one."""
    labels = recorded.labels
    groups: list[frozenset[LayerId]] = [*groups_of_layers(recorded.log.layers)]
    orders: dict[LayerId, str] = {}
    if label is not None:
        groups, orders = [frozenset([labels.layer(label)])], {labels.layer(label): ""}
    for group in groups:
        orders |= _orders(recorded, group)
    return [
        {
            "layer": labels.label(layer),
            **({"decision": decision} if (decision := labels.decision(layer)) else {}),
            "rule": labels.rule_text(layer) if labels.rule(layer) else None,
            "writes": order.count("B"),
            "order": order.split("-") if order else [],
        }
        for layer, order in orders.items()
    ]
