"""``naspipe export`` of the student blocks of a blockwise distillation, as one network."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from naspipe.export.exporter import Exported
    from naspipe.frontend.training.distilled import Blockwise


def export_students(arguments: argparse.Namespace) -> Exported:
    """Export what the arguments of ``naspipe export`` name.

    Raises:
        ConfigError: for input that cannot be used.
    """
    from naspipe.config.errors import ConfigError
    from naspipe.export.composed import export_blocks

    for option in ("ema", "retrain"):
        if getattr(arguments, option):
            raise ConfigError(
                f"--{option}: expected a run of its own, found a blockwise distillation; "
                f"train its network from Python, and export that run"
            )
    found = _found(arguments)
    choices = _choices(found, arguments.subnet)
    return export_blocks(
        found, choices, arguments.output, calibrate=arguments.calibrate or 0, onnx=arguments.onnx
    )


def _found(arguments: argparse.Namespace) -> Blockwise:
    """The distillation, by what the command line once called it or what it is now told."""
    from naspipe.cli.distilling.found import read_distilled
    from naspipe.config.errors import ConfigError
    from naspipe.config.user_code import import_attribute
    from naspipe.frontend.given.workloads import find_data
    from naspipe.frontend.training.distilled import Blockwise, read_blocks
    from naspipe.trace.results.run_directory import RunDirectory

    path = Path(arguments.run)
    source = RunDirectory(path / "block-0").read_manifest().get("source") or {}
    if source.get("command") == "distill" and not (arguments.space or arguments.data):
        return read_distilled(path, arguments.data_dir).found
    if arguments.space is None or arguments.data is None:
        raise ConfigError(
            f"{path}: a blockwise distillation: expected --space MODULE:ATTRIBUTE, the list of its "
            f"students, and --data MODULE:FUNCTION"
        )
    listed = import_attribute(arguments.space)
    if not isinstance(listed, list | tuple):
        raise ConfigError(
            f"{arguments.space}: expected the list of students, found {type(listed).__name__}"
        )
    data = find_data(arguments.data, arguments.data_dir, {})
    return Blockwise(read_blocks(path, listed), (), data, ())


def _choices(found: Blockwise, text: str) -> list[tuple[int, ...]]:
    from naspipe.config.errors import ConfigError
    from naspipe.frontend.search.block_rating import combine_blocks

    if text == "best":
        return list(combine_blocks(found.ratings()).choices)
    if not re.fullmatch(r"[0-9,;\s]*", text):
        raise ConfigError(
            f"--subnet {text!r:.80}: expected best, or the choices of {len(found.blocks)} blocks, "
            f"as in 0,1;2;"
        )
    parts = text.split(";")
    return [tuple(int(each) for each in part.split(",") if each.strip()) for part in parts]
