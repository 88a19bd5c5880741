"""Export a subnet of a run as PyTorch or ONNX files, and train a subnet alone.

Either all files are written or none, and their outputs are compared with the run's own layers.
"""

from __future__ import annotations

import importlib.util
import logging
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from naspipe.api.retraining import workload_alone
from naspipe.api.training import start
from naspipe.config.errors import ConfigError, InvariantError, reason
from naspipe.config.execution import Execution
from naspipe.config.user_code import users_code
from naspipe.distill.distillation import Distillation
from naspipe.export.assembly import (
    ModuleChain,
    assemble,
    check_cuts,
    with_own_statistics,
)
from naspipe.export.pytorch_form import FILES, load_pytorch, same_outputs, write_pytorch
from naspipe.inputs.run import Run, check_space
from naspipe.jobs.losses import Loss
from naspipe.jobs.workload import Batches
from naspipe.machine.determinism import deterministic_torch
from naspipe.search.scores import Scores
from naspipe.store.run_directory import RunDirectory
from naspipe.wire.ports import LaunchObserver
from naspipe.wire.reports import Observer

EXTRA = "pip install 'naspipe[onnx]'"
TOLERANCE = 1e-5
"""Maximum absolute and relative difference of ONNX Runtime's outputs from torch's."""


def check_onnx() -> None:
    """Raise, naming the extra to install, if packages that write or check ONNX are missing."""
    missing = [
        name for name in ("onnx", "onnxscript", "onnxruntime") if not importlib.util.find_spec(name)
    ]
    if missing:
        raise ConfigError(f"ONNX needs {' and '.join(missing)}, not installed here; {EXTRA}")


def write_onnx(model: nn.Module, batch: Mapping[str, torch.Tensor], path: Path) -> float:
    """Write the model for batches of this shape, and return the greatest difference of an output.

    Raises:
        ConfigError: for an operator that ONNX does not have, or outputs that differ by more than
            the tolerance.
    """
    check_onnx()
    inputs = tuple(batch[name] for name in model.input_names)  # type: ignore[union-attr]
    names = list(model.input_names)  # type: ignore[arg-type]
    quiet = logging.getLogger("torch.onnx")
    level = quiet.level
    quiet.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                model,
                inputs,
                path,
                input_names=names,
                dynamo=True,
                verbose=False,
                external_data=False,
            )
    except Exception as error:
        path.unlink(missing_ok=True)
        cause: BaseException = error  # the exporter wraps it in several lines of advice
        while cause.__cause__ is not None:
            cause = cause.__cause__
        raise ConfigError(f"ONNX: expected operators that it has, found {reason(cause)}") from error
    finally:
        quiet.setLevel(level)
    difference = _difference(model, inputs, path)
    if difference > TOLERANCE:
        path.unlink()
        raise ConfigError(
            f"ONNX: expected outputs within {TOLERANCE:g} of torch's, found a difference of "
            f"{difference:.3g}"
        )
    return difference


def _difference(model: nn.Module, inputs: tuple[torch.Tensor, ...], path: Path) -> float:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    given = {
        argument.name: tensor.numpy()
        for argument, tensor in zip(session.get_inputs(), inputs, strict=True)
    }
    found = [torch.from_numpy(output) for output in session.run(None, given)]
    with torch.no_grad():
        expected = model(*inputs)
    expected = expected if isinstance(expected, tuple) else (expected,)
    differences = [
        ((a - b).abs() / b.abs().clamp(min=1.0)).max().item()
        for a, b in zip(found, expected, strict=True)
        if b.is_floating_point()
    ]
    return max(differences, default=0.0)


@dataclass(frozen=True, slots=True)
class Exported:
    """The result of an export."""

    directory: Path
    needs: tuple[str, ...]
    """Modules that must be importable where the subnet is loaded, besides torch and safetensors."""
    untrained: tuple[str, ...]
    """Layers that the run never used; they have the run's initial weights."""
    is_checked: bool
    """True if the files were loaded again and gave bitwise equal outputs for a batch."""
    onnx_difference: float | None = None
    """Greatest difference of ONNX Runtime's outputs, if ONNX was requested."""
    calibrated: int = 0
    """Number of batches used to recompute running statistics; 0 if they are the run's own."""
    scores: Scores | None = None
    """Scores on held-out batches, if the subnet was validated."""
    whys: tuple[str, ...] = ()
    """Reasons why the user's own modules are needed, one line for each class or function."""


def export_subnet(
    run: Run,
    choices: Sequence[int],
    directory: str | Path,
    *,
    data: Batches | None = None,
    onnx: bool = False,
    ema: bool = False,
    calibrate: int | None = None,
    observer: LaunchObserver | None = None,
) -> Exported:
    """Write a subnet with a run's weights as ``model.py``, ``.json`` and ``.safetensors``.

    Args:
        run: a finished run, with the space that it trained.
        choices: one per choice block.
        directory: a directory that does not exist yet, or is empty.
        data: the run's data; its first batch checks the files.
        onnx: also write ``model.onnx``, for batches of that shape.
        ema: use the moving averages of the weights.
        calibrate: number of batches of ``data`` from which to recompute running statistics, as a
            search does before it scores a subnet (``search.calibration``); 0 (the default, with a
            note) keeps the mixture over all subnets that the run left.
        observer: receives notes, instead of stderr.

    Raises:
        ConfigError: if the run, the space or a layer cannot be exported, if ONNX lacks an operator,
            or if the directory is in use.
    """
    path = Path(directory)
    check_space(run)
    check_place(path, data, onnx)
    chain = assemble(run, choices, ema=ema)
    if data is not None and any(layer.whole is not None for layer in chain.layers):
        definition = run.manifest["definition"]
        with deterministic_torch(definition["recipe"]["threads"]), torch.no_grad():
            check_cuts(chain, first_batch(data, definition["seed"], chain.inputs))
    note = f"Subnet {','.join(map(str, choices))} of {run.manifest['definition']['space']}."
    calibrated = with_own_statistics(chain, run, data, calibrate, observer)
    return write_checked(chain, run, path, note, data=data, onnx=onnx, calibrated=calibrated)


def check_place(path: Path, data: Batches | None, onnx: bool) -> None:
    """Reject a directory in use, and ONNX without its requirements."""
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise ConfigError(f"{path}: expected a new or empty directory; choose another --output")
    if onnx:
        check_onnx()
        if data is None:
            raise ConfigError("ONNX needs a batch, whose shape it takes; give the run's --data")


def write_checked(
    chain: ModuleChain,
    run: Run,
    path: Path,
    note: str,
    *,
    data: Batches | None,
    onnx: bool,
    calibrated: int,
) -> Exported:
    """Write a chain, load the files, and compare on the first batch of a run's data.

    Raises:
        ConfigError: if a layer cannot be exported, or if ONNX lacks an operator; in the latter case
            the PyTorch files have been written.
        InvariantError: if the outputs differ; no files remain.
    """
    definition = run.manifest["definition"]
    batch = first_batch(data, definition["seed"], chain.inputs) if data is not None else None
    threads, loaded, difference = definition["recipe"]["threads"], None, None
    with _all_or_nothing(path):
        needs, whys = write_pytorch(chain, path, note, calibrated)
        if batch is not None:
            with deterministic_torch(threads):
                loaded = load_pytorch(path)
                if not same_outputs(chain, loaded, batch):
                    raise InvariantError(
                        f"{path}: the exported subnet's outputs differ from the run's"
                    )
    if onnx and loaded is not None and batch is not None:
        with deterministic_torch(threads):
            difference = write_onnx(loaded, batch, path / "model.onnx")
    untrained = tuple(layer.label for layer in chain.layers if not layer.is_trained)
    is_checked = batch is not None
    return Exported(path, needs, untrained, is_checked, difference, calibrated, whys=whys)


@contextmanager
def _all_or_nothing(path: Path) -> Iterator[None]:
    """Restore a new or empty directory if anything is raised."""
    was_there = path.exists()
    try:
        yield
    except BaseException:
        shutil.rmtree(path / "__pycache__", ignore_errors=True)
        for name in FILES:
            (path / name).unlink(missing_ok=True)
        if path.exists() and not was_there:
            path.rmdir()
        raise


def first_batch(data: Batches, seed: int, names: Sequence[str]) -> dict[str, torch.Tensor]:
    """Return the fields of a run's first batch that a subnet uses."""
    with users_code(f"data: expected a batch with {', '.join(names)} from data({seed}, 0), found"):
        batch: Mapping[str, Any] = data(seed, 0)
        return {name: batch[name] for name in names}


def train_alone(
    run: Run,
    choices: Sequence[int],
    directory: str | Path,
    *,
    data: Batches,
    loss: Loss,
    steps: int,
    observer: LaunchObserver | None = None,
) -> Run:
    """Train one subnet from its initial weights, with a run's recipe and seed; without a sandwich.

    It is an ordinary run in which every step trains the same subnet.

    Raises:
        ConfigError: as :func:`naspipe.train`.
    """
    path = Path(directory)
    if steps < 1:
        raise ConfigError(f"--retrain: expected 1 step or more, found {steps}")
    RunDirectory(path).check_new()
    alone = workload_alone(run, choices, data, loss, steps=steps)
    start(
        Distillation((alone,)),
        Execution(),
        path,
        watch=lambda *_: nullcontext(observer or Observer()),
    )
    return Run(alone.space, path)
