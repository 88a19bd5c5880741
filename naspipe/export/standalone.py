"""The subnet that the files beside this one hold, as an ordinary torch module.

``load()`` returns it in evaluation mode. Needs torch and safetensors alone, and the modules named
in ``model.json`` where it names any.
"""

from __future__ import annotations

import importlib as _importlib
import json as _json
from pathlib import Path as _Path
from typing import Any as _Any

import torch
from safetensors.torch import load_file as _load_file
from torch import nn

_SUBNET_CLASSES: dict[str, type[nn.Module]] = {}
"""The classes of this file that ``model.json`` names."""


class Subnet(nn.Module):
    """A chain: each layer takes what the one before returned, then the inputs it names."""

    def __init__(self, description: dict[str, _Any], tensors: dict[str, torch.Tensor]) -> None:
        super().__init__()
        self.input_names = tuple(description["inputs"])
        self.layer_inputs: list[tuple[str, ...]] = []
        made: dict[str, nn.Parameter] = {}
        for layer in description["layers"]:
            self.add_module(layer["name"], _subnet_module(layer["module"], tensors, made))
            self.layer_inputs.append(tuple(layer["inputs"]))

    def forward(self, *inputs: torch.Tensor) -> _Any:
        """Take the inputs in the order of ``input_names``."""
        given = dict(zip(self.input_names, inputs, strict=True))
        state: tuple[_Any, ...] = ()
        result: _Any = None
        for layer, names in zip(self.children(), self.layer_inputs, strict=True):
            result = layer(*state, *(given[name] for name in names))
            state = result if isinstance(result, tuple) else (result,)
        return result


def load(directory: str | _Path = _Path(__file__).parent) -> Subnet:
    """The subnet with its trained weights."""
    description = _json.loads((_Path(directory) / "model.json").read_text("utf-8"))
    tensors = _load_file(_Path(directory) / "model.safetensors")
    # A file's tensors may start anywhere in memory, and kernels round by where they start.
    aligned = {name: tensor.clone() for name, tensor in tensors.items()}
    for name, strides in description.get("strides", {}).items():  # as in channels_last
        tensor = tensors[name]
        aligned[name] = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype).copy_(tensor)
    return Subnet(description, aligned).eval()


def _subnet_module(
    description: dict[str, _Any], tensors: dict[str, torch.Tensor], made: dict[str, nn.Parameter]
) -> nn.Module:
    """A module as it was: attributes, tensors and submodules, without its constructor."""
    kind = _subnet_class(description["class"])
    module = kind.__new__(kind)
    nn.Module.__init__(module)
    for name, value in description["attributes"].items():
        setattr(module, name, _subnet_value(value))
    for name, entry in description["parameters"].items():
        if entry is None:
            module.register_parameter(name, None)
            continue
        key = entry["tensor"]
        if key not in made:
            made[key] = nn.Parameter(tensors[key], requires_grad=entry["requires_grad"])
        module.register_parameter(name, made[key])
    for name, entry in description["buffers"].items():
        value = None if entry is None else tensors[entry["tensor"]]
        module.register_buffer(name, value, persistent=entry is None or entry["persistent"])
    for name, inner in description["modules"].items():
        module.add_module(name, None if inner is None else _subnet_module(inner, tensors, made))
    return module


def _subnet_class(name: str) -> type[nn.Module]:
    if name in _SUBNET_CLASSES:
        return _SUBNET_CLASSES[name]
    found: type[nn.Module] = _subnet_imported(name)
    return found


def _subnet_imported(name: str) -> _Any:
    if ":" not in name:
        return globals()[name]  # of this file
    module, _, path = name.partition(":")
    found: _Any = _importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    return found


def _subnet_value(value: _Any) -> _Any:
    """A plain value; what JSON has no form for is an object with one key."""
    if isinstance(value, list):
        return [_subnet_value(item) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "tuple":
        return tuple(_subnet_value(item) for item in content)
    if kind == "dict":
        return {key: _subnet_value(item) for key, item in content}
    if kind == "float":
        return float.fromhex(content)
    return _subnet_imported(content)
