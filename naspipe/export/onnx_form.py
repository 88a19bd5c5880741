"""A subnet as an ONNX file, where its operators allow."""

from __future__ import annotations

import importlib.util
import logging
import warnings
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn

from naspipe.config.errors import ConfigError, reason

EXTRA = "pip install 'naspipe[onnx]'"
TOLERANCE = 1e-5
"""How far ONNX Runtime's outputs may be from torch's, absolutely and relatively."""


def check_onnx() -> None:
    """The packages that writing and checking ONNX needs.

    Raises:
        ConfigError: naming the extra to install.
    """
    missing = [
        name for name in ("onnx", "onnxscript", "onnxruntime") if not importlib.util.find_spec(name)
    ]
    if missing:
        raise ConfigError(f"ONNX needs {' and '.join(missing)}, not installed here; {EXTRA}")


def write_onnx(model: nn.Module, batch: Mapping[str, torch.Tensor], path: Path) -> float:
    """Write the model for batches of this shape; returns the greatest difference of an output.

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
                model, inputs, path, input_names=names, dynamo=True, verbose=False,
                external_data=False,
            )  # fmt: skip
    except Exception as error:
        path.unlink(missing_ok=True)
        cause = _first_cause(error)
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


def _first_cause(error: BaseException) -> BaseException:
    """The exporter wraps what went wrong in advice of several lines."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


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
