"""Export one subnet of a run as an ordinary PyTorch module that works without naspipe.

The output directory contains model.safetensors, model.json and model.py; `import model;
model.load()` returns the subnet in evaluation mode. The exported files are loaded again and checked
on a batch of the run's data.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING

from naspipe.cli.data import add_data_place
from naspipe.cli.options import add_options
from naspipe.cli.output import complain, tell
from naspipe.config.errors import ConfigError

if TYPE_CHECKING:
    from naspipe.api.distill import Blockwise
    from naspipe.config.space import Space
    from naspipe.export.exporter import Exported
    from naspipe.jobs.losses import Loss
    from naspipe.jobs.workload import Batches
    from naspipe.store.run_directory import RunDirectory

_EXAMPLE = """\
examples:
  naspipe export runs/two --subnet first -o exported
  naspipe export runs/two --subnet best -o exported             the best one of the newest search
  naspipe export runs/two --subnet 41 -o exported --onnx        the subnet of step 41
  naspipe export runs/two --subnet 0,3,1,2 -o exported          one choice per choice block
  naspipe export runs/mine --space mymodule:space --data mymodule:batches --subnet last -o exported
  naspipe export runs/two --subnet first --retrain 500 -o alone  trained alone, from initial weights
  naspipe export runs/blocks --space mine:students --data mine:batches --subnet '0,1;2;' -o out

For a blockwise distillation, the subnet is one path for each block: choices with ; between blocks,
or best for the best combination of its newest ratings.

Your own classes are copied into model.py, so that neither naspipe nor your package is needed to
load the subnet. A class that cannot be copied is imported instead, and a message reports from
where.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EXAMPLE
    add_options(
        parser,
        """
        run RUN           run directory
        --subnet ID!      subnet to export: best, first, last, a step number, or choices such as
            0,1,3
        -o --output DIR!  directory to write
        --ema             export the moving averages of the weights
        --calibrate C     number of training batches from which running statistics are recomputed; 0
            to use those of the supernet (default: for best, as many as its search used; otherwise
            0)
        --onnx            also write model.onnx
        --retrain STEPS   first train the subnet alone for this many steps, from its initial weights
        --space MODULE:ATTRIBUTE  search space of a run that trained your own space
        --data NAME       name of a data set, or MODULE:FUNCTION
        """,
        run=str,
    )
    add_data_place(parser)


def run(arguments: argparse.Namespace) -> int:
    """Export; print the directory on stdout, and notes on stderr."""
    from naspipe.distill.blockwise import folder
    from naspipe.export.assembly import find_choices
    from naspipe.export.exporter import check_onnx, export_subnet, train_alone
    from naspipe.inputs.run import Run, check_space
    from naspipe.search.search_directory import newest_search
    from naspipe.store.run_directory import RunDirectory
    from naspipe.wire.reports import NotesToStderr

    path = Path(arguments.run)
    if (path / folder(0)).is_dir():
        return _finish(_export_students(arguments))
    space, data, loss = _workload(arguments, RunDirectory(path))
    found = Run(space, path)
    check_space(found)
    choices = find_choices(found, arguments.subnet)
    calibrate, ema = arguments.calibrate, arguments.ema
    if arguments.subnet == "best" and arguments.retrain is None:  # as judged by the search
        search = newest_search(path)
        calibrate = search.calibration if calibrate is None else calibrate
        ema = ema or search.ema
    output: Path = arguments.output
    if arguments.onnx:
        check_onnx()
    if arguments.retrain is not None:
        if data is None or loss is None:
            raise ConfigError("--retrain: expected the run's data, found none; give --data")
        found = train_alone(
            found, choices, output / "run", data=data, loss=loss, steps=arguments.retrain
        )
        output = output / "model"
    done = export_subnet(
        found,
        choices,
        output,
        data=data,
        onnx=arguments.onnx,
        ema=ema,
        calibrate=calibrate,
        observer=NotesToStderr(),
    )
    return _finish(done)


def _finish(done: Exported) -> int:
    """Report the export, with notes for the user; return the exit status."""
    if done.needs:
        complain(f"loading it needs {', '.join(done.needs)} importable")
    for why in done.whys:
        complain(why)
    if done.untrained:
        complain(f"never trained by this run: {', '.join(done.untrained)}")
    if done.calibrated:
        taken = f"running statistics taken anew from {done.calibrated} batches"
        complain(f"{taken}; --calibrate 0 keeps the supernet's")
    if not done.is_checked:
        complain("not checked on a batch; give --data to do so")
    if done.onnx_difference is not None:
        complain(f"ONNX within {done.onnx_difference:.1e} of torch")
    tell(str(done.directory))
    return 0


def _workload(
    arguments: argparse.Namespace, directory: RunDirectory
) -> tuple[Space, Batches | None, Loss | None]:
    """Return the run's space, its data if they are known, and its loss if it is needed."""
    from naspipe.cli.sources import run_source
    from naspipe.config.rules import parse_rule
    from naspipe.inputs.named import as_trained, find_space, find_workload, run_loss
    from naspipe.inputs.run import loss_layer_of

    manifest = directory.read_manifest()
    rules = manifest["definition"]["rules"]
    loss_layer = loss_layer_of(manifest)
    parsed = {name: parse_rule(rule) for name, rule in rules.items() if name != loss_layer}
    space, scale, data, sizes = run_source(arguments, manifest)
    if data is None:
        return find_space(space).with_rules(parsed), None, None
    named = find_workload(space, scale, data, arguments.data_dir, sizes)
    named = as_trained(named, manifest)
    if arguments.retrain is None:
        return named.space, named.data, None
    return named.space, named.data, run_loss(named, directory, (data, space))


def _export_students(arguments: argparse.Namespace) -> Exported:
    """Export the student blocks of a blockwise distillation as one network."""
    from naspipe.api.block_rating import combine_blocks
    from naspipe.export.composed import export_blocks

    for option in ("ema", "retrain"):
        if getattr(arguments, option):
            raise ConfigError(
                f"--{option}: expected a run of its own, found a blockwise distillation; "
                f"train its network from Python, and export that run"
            )
    found, text = _found(arguments), arguments.subnet
    if text == "best":
        choices = list(combine_blocks(found.ratings()).choices)
    elif re.fullmatch(r"[0-9,;\s]*", text):
        parts = text.split(";")
        choices = [tuple(int(each) for each in part.split(",") if each.strip()) for part in parts]
    else:
        raise ConfigError(
            f"--subnet {text!r:.80}: expected best, or the choices of {len(found.blocks)} blocks, "
            f"as in 0,1;2;"
        )
    return export_blocks(
        found, choices, arguments.output, calibrate=arguments.calibrate or 0, onnx=arguments.onnx
    )


def _found(arguments: argparse.Namespace) -> Blockwise:
    """Return the distillation that a command line started, or that this command line describes."""
    from naspipe.api.distill import Blockwise, read_blocks
    from naspipe.cli.distill_sources import read_distilled
    from naspipe.config.user_code import import_attribute
    from naspipe.inputs.named import find_data
    from naspipe.store.run_directory import RunDirectory

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
