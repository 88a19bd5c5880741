"""Export a subnet of a run as PyTorch or ONNX files, and train a subnet alone.

The files appear whole or not at all, and what they compute is compared with the run's own layers.
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
"""How far ONNX Runtime's outputs may be from torch's, absolutely and relatively."""


def check_onnx() -> None:
    """Raise, with the extra to install, unless what writes and checks ONNX is there."""
    missing = [
        name for name in ("onnx", "onnxscript", "onnxruntime") if not importlib.util.find_spec(name)
    ]
    if missing:
        raise ConfigError(f"ONNX needs {' and '.join(missing)}, not installed here; {EXTRA}")


def write_onnx(model: nn.Module, batch: Mapping[str, torch.Tensor], path: Path) -> float:
    """Write the model for batches of this shape; return the greatest difference of an output.

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
        cause: BaseException = error  # the exporter wraps it in advice of several lines
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
    """What an export left."""

    directory: Path
    needs: tuple[str, ...]
    """Modules that must be importable where the subnet is loaded, beside torch and safetensors."""
    untrained: tuple[str, ...]
    """Layers that the run never used, with the weights it would start them with."""
    is_checked: bool
    """Whether the files were loaded again and gave bitwise the same outputs for a batch."""
    onnx_difference: float | None = None
    """The greatest difference of ONNX Runtime's outputs, where that form was asked for."""
    calibrated: int = 0
    """Batches that running statistics were taken from anew; 0 where they are the run's own."""
    scores: Scores | None = None
    """On held-out batches, where it was validated."""
    whys: tuple[str, ...] = ()
    """Why modules of your own are needed, a line for each class or function."""


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
        directory: one that does not exist yet, or is empty.
        data: the run's data; its first batch checks what was written.
        onnx: write ``model.onnx`` too, for batches of that shape.
        ema: the moving averages of the weights in their stead.
        calibrate: batches of ``data`` to take running statistics from anew, as a search does before
            it judges a subnet (``search.calibration``); 0, and by default with a note, for the
            mixture over all subnets that the run left.
        observer: told of notes, in place of stderr.

    Raises:
        ConfigError: when the run, the space or a layer cannot be exported, when ONNX lacks an
            operator, or when the directory is in use.
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
    """Refuse a directory in use, and ONNX without what it needs."""
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
    """Write a chain, load what was written, and compare on the first batch of a run's data.

    Raises:
        ConfigError: when a layer cannot be exported, or ONNX lacks an operator; the other form is
            there then.
        InvariantError: when the outputs differ; nothing is left of what was written then.
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
    """Leave a new or empty directory as it was if anything is raised."""
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
    """Return the fields of a run's first batch that a subnet reads."""
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
    """Train one subnet from its first weights, with a run's recipe and seed; without a sandwich.

    It is an ordinary run whose every step takes the same subnet.

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
