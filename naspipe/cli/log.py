"""Print who read (F) and who wrote (B) each layer, in order, as in 2F-2B-5F-5B-7F-7B.

The numbers are sequence IDs: 2F is the forward of subnet 2, 2B the update after its backward.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Iterator
from typing import Any

from naspipe.cli.display.json_results import add_json, as_json
from naspipe.core.access import AccessKind
from naspipe.trace.access.order import access_order, format_order, layer_order, reads_and_writes
from naspipe.trace.reading.compare import RecordedRun

_EXAMPLE = """\
examples:
  naspipe log runs/two                 every layer that was used, one a line
  naspipe log runs/two --layer 3.1     candidate 1 of choice block 3, in full
  naspipe log runs/two --layer head    a shared layer, by its name

A terminal shows the start of long orders; a file or a pipe gets them in full.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.epilog = _EXAMPLE
    parser.add_argument("run", metavar="RUN", help="run directory")
    parser.add_argument(
        "--layer",
        metavar="LAYER",
        help="BLOCK.CANDIDATE or a shared layer's name; 1:3.1 is layer 3.1 of stream 1",
    )
    add_json(parser, "lines")


def run(arguments: argparse.Namespace) -> int:
    """Print the orders; returns the exit status."""
    recorded = RecordedRun(arguments.run)
    if arguments.json:
        print(as_json(_described(recorded, arguments.layer)))
        return 0
    if arguments.layer is None:
        for line in _lines(recorded, _width()):
            print(line)
        return 0
    order = access_order(recorded.accesses, recorded.labels.layer(arguments.layer))
    if not order:
        print(f"naspipe: no subnet of {recorded.path} used {arguments.layer}", file=sys.stderr)
    print(order)
    return 0


def _lines(recorded: RecordedRun, width: int | None) -> Iterator[str]:
    """Label, rule, number of WRITEs and order of each layer that was used, in chain order."""
    layers = reads_and_writes(recorded.accesses)
    labels = recorded.labels
    ordered = sorted(layers, key=lambda layer: (layer.stream, layer.block, layer.candidate))
    widest = max((len(labels.label(layer)) for layer in ordered), default=0)
    rule_width = max((len(str(rule)) for rule in labels.rules), default=0)
    for layer in ordered:
        records = layers[layer]
        rule = str(labels.rules[layer.block]) if layer.block < len(labels) else "?"
        writes = sum(access.kind is AccessKind.WRITE for access in records)
        order = format_order(layer_order(records))
        line = f"{labels.label(layer):{widest}}  {rule:{rule_width}}  {writes:5}  {order}"
        yield line if width is None or len(line) <= width else f"{line[: width - 1]}…"


def _described(recorded: RecordedRun, label: str | None) -> list[dict[str, Any]]:
    """Of each layer, or of one: label, rule, number of WRITEs and order."""
    layers = reads_and_writes(recorded.accesses)
    chosen = sorted(layers) if label is None else [recorded.labels.layer(label)]
    rules = recorded.labels.rules
    return [
        {
            "layer": recorded.labels.label(layer),
            "rule": str(rules[layer.block]) if layer.block < len(rules) else None,
            "writes": sum(each.kind is AccessKind.WRITE for each in layers.get(layer, ())),
            "order": format_order(layer_order(layers.get(layer, ()))).split("-"),
        }
        for layer in chosen
    ]


def _width() -> int | None:
    """Columns of the terminal, or None where there is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None
