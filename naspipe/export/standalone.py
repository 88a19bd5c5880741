"""The subnet that the files beside this one hold, as an ordinary torch module.

``load()`` returns it in evaluation mode. Needs torch and safetensors alone, and the modules named
in ``model.json`` where it names any.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn

CLASSES: dict[str, type[nn.Module]] = {}
"""The classes of this file that ``model.json`` names."""


class Subnet(nn.Module):
    """A chain: each layer takes what the one before returned, then the inputs it names."""

    def __init__(self, description: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        super().__init__()
        self.input_names = tuple(description["inputs"])
        self.layer_inputs: list[tuple[str, ...]] = []
        made: dict[str, nn.Parameter] = {}
        for layer in description["layers"]:
            self.add_module(layer["name"], _module(layer["module"], tensors, made))
            self.layer_inputs.append(tuple(layer["inputs"]))

    def forward(self, *inputs: torch.Tensor) -> Any:
        """Take the inputs in the order of ``input_names``."""
        given = dict(zip(self.input_names, inputs, strict=True))
        state: tuple[Any, ...] = ()
        result: Any = None
        for layer, names in zip(self.children(), self.layer_inputs, strict=True):
            result = layer(*state, *(given[name] for name in names))
            state = result if isinstance(result, tuple) else (result,)
        return result


def load(directory: str | Path = Path(__file__).parent) -> Subnet:
    """The subnet with its trained weights."""
    description = json.loads((Path(directory) / "model.json").read_text("utf-8"))
    tensors = load_file(Path(directory) / "model.safetensors")
    # A file's tensors may start anywhere in memory, and kernels round by where they start.
    aligned = {name: tensor.clone() for name, tensor in tensors.items()}
    for name, strides in description.get("strides", {}).items():  # as in channels_last
        tensor = tensors[name]
        aligned[name] = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype).copy_(tensor)
    return Subnet(description, aligned).eval()


def _module(
    description: dict[str, Any], tensors: dict[str, torch.Tensor], made: dict[str, nn.Parameter]
) -> nn.Module:
    """A module as it was: attributes, tensors and submodules, without its constructor."""
    kind = _class(description["class"])
    module = kind.__new__(kind)
    nn.Module.__init__(module)
    for name, value in description["attributes"].items():
        setattr(module, name, _value(value))
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
        module.add_module(name, None if inner is None else _module(inner, tensors, made))
    return module


def _class(name: str) -> type[nn.Module]:
    if name in CLASSES:
        return CLASSES[name]
    found: type[nn.Module] = _imported(name)
    return found


def _imported(name: str) -> Any:
    if ":" not in name:
        return globals()[name]  # of this file
    module, _, path = name.partition(":")
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    return found


def _value(value: Any) -> Any:
    """A plain value; what JSON has no form for is an object with one key."""
    if isinstance(value, list):
        return [_value(item) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "tuple":
        return tuple(_value(item) for item in content)
    if kind == "dict":
        return {key: _value(item) for key, item in content}
    if kind == "float":
        return float.fromhex(content)
    return _imported(content)
