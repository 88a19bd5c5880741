"""The files of a subnet: ``model.py``, ``model.json`` and ``model.safetensors``.

A module is written as plain data: its class, attributes, submodules, and the names of its tensors.
``model.py`` contains the classes, with everything that their forwards need.
"""

from __future__ import annotations

import copy
import importlib.util
import inspect
import keyword
import math
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
import torch.fx as fx
from safetensors.torch import save_file
from torch import nn

from naspipe.checks.exportable import (
    WAY_OUT,
    folded,
    formless,
    has_hooks,
    importable,
    is_compiled,
)
from naspipe.config.errors import ConfigError
from naspipe.config.user_code import is_users_module, why_no_source
from naspipe.export import standalone
from naspipe.export.assembly import ModuleChain
from naspipe.export.source import SourceFile, is_written_out
from naspipe.machine.staging import same_bits
from naspipe.store.files import write_json

_INTERNAL = frozenset(nn.Module().__dict__)

FORMAT = 1
FILES = ("model.py", "model.json", "model.safetensors")


def write_pytorch(
    chain: ModuleChain, directory: Path, note: str, calibrated: int = 0
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Write the subnet; return the modules that must be importable where it is loaded, and why.

    Args:
        chain: the subnet.
        directory: created if it does not exist; nothing is written before everything is known to
            fit.
        note: one line for the head of ``model.py``.
        calibrated: number of batches used to recompute running statistics.

    Raises:
        ConfigError: for a layer that cannot be written as data, with the reason and the place.
    """
    writer = _Writer()
    modules = [folded(layer.module) for layer in chain.layers]  # kept alive: named by id()
    layers = []
    for layer, module in zip(chain.layers, modules, strict=True):
        name = layer.name
        reserved = ("input_names", "layer_inputs")
        if keyword.iskeyword(name) or hasattr(nn.Module, name) or name in reserved:
            raise ConfigError(f"layer {name}: a torch module has something of this name; rename it")
        writer.layer = layer.name
        layers.append(
            {
                "name": layer.name,
                "label": layer.label,
                "inputs": list(layer.fields),
                "is_trained": layer.is_trained,
                "module": writer.module(module, layer.name),
            }
        )
    needs = sorted(writer.needs | writer.source.needs)
    description = {
        "format": FORMAT,
        "choices": list(chain.choices),
        "calibrated": calibrated,
        "inputs": list(chain.inputs),
        "needs": needs,
        "layers": layers,
        **({"strides": writer.strides} if writer.strides else {}),
    }
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{directory} cannot be made: {error.strerror}") from error
    save_file(writer.tensors, directory / "model.safetensors")
    write_json(directory / "model.json", description)
    (directory / "model.py").write_text(_file(writer, note), "utf-8")
    return tuple(needs), tuple(writer.whys)


def load_pytorch(directory: Path) -> nn.Module:
    """Load the subnet in the same way as a recipient of the files."""
    spec = importlib.util.spec_from_file_location("naspipe_exported_model", directory / "model.py")
    if spec is None or spec.loader is None:
        raise ConfigError(f"{directory}: expected an exported subnet, found no model.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    loaded: nn.Module = module.load(directory)
    return loaded


class _Writer:
    """Converts modules to data; collects their tensors by full name, and the source of classes."""

    def __init__(self) -> None:
        self.source = SourceFile()
        self.written: dict[str, None] = {}
        self.kinds: set[type] = set()
        self.needs: set[str] = set()
        self.whys: dict[str, None] = {}
        """Reasons why modules of the user are needed."""
        self.layer = self.failed = ""
        self.tensors: dict[str, torch.Tensor] = {}
        self.strides: dict[str, list[int]] = {}
        """Strides of tensors that are not in row-major order, which affect rounding in kernels."""
        self._names: dict[int, str] = {}

    def name(self, module: nn.Module) -> str:
        kind = type(module)
        if isinstance(module, fx.GraphModule):
            return self._written(self._traced(module))
        kind = getattr(kind, "_bound_type", None) or kind  # NNI's Mutable form of a torch class
        if is_written_out(kind) and (name := self._source_of(kind)):
            self.kinds |= {kind, type(module)}
            return self._written(name)
        name = importable(kind)
        if not name or kind.__module__ == "__main__":
            why = why_no_source(kind) or self.failed
            raise ConfigError(
                f"layer {self.layer}: expected a class that can be imported, found "
                f"{kind.__module__}.{kind.__qualname__}"
                f"{f', which {why}' if why else ''}; define it at the top of a module, "
                f"or {WAY_OUT}"
            )
        self._need(kind.__module__, kind)
        return name

    def reference(self, value: Any) -> str:
        """Return the name of a function or class that a module holds; empty if it has none."""
        is_own = isinstance(value, type | FunctionType) and is_users_module(value.__module__)
        if is_own and (name := self._source_of(value)):
            return name
        name = importable(value)
        module = name.partition(":")[0]
        if module == "__main__":
            return ""
        if name:
            self._need(module, value)
        return name

    def _source_of(self, thing: Any) -> str:
        """Add the source of a class or function and return its name; empty if impossible."""
        before, self.failed = copy.deepcopy(self.source), ""
        try:
            return self.source.add(thing)
        except ConfigError as error:
            self.source = before
            if thing.__module__.split(".")[0] == "search_spaces":
                raise
            self.failed = f"cannot be written out: {error}"
            return ""

    def _need(self, module: str, thing: Any) -> None:
        if module.split(".")[0] in ("torch", *sys.stdlib_module_names):
            return
        self.needs.add(module)
        if is_users_module(module) and self.failed:
            self.whys[f"{thing.__qualname__} {self.failed}"] = None

    def is_read(self, module: nn.Module, attribute: str) -> bool:
        """Return False if the exported code of the module's class does not read an attribute."""
        kind = type(module)
        if isinstance(module, fx.GraphModule):
            return False
        if attribute in ("trace_args", "trace_kwargs") and hasattr(kind, "_bound_type"):
            return False
        others = [base for base in kind.__mro__[1:] if not is_written_out(base)]
        if kind in self.kinds and {b.__module__ for b in others} <= _PLAIN_BASES:
            return self.source.reads(attribute)
        return True

    def _written(self, name: str) -> str:
        self.written[name] = None
        return name

    def _traced(self, module: fx.GraphModule) -> str:
        code = module.graph.python_code("self")
        used = set(re.findall(r"[A-Za-z_][A-Za-z0-9_]*", code.src))
        needed = {name: value for name, value in code.globals.items() if name in used}
        body = "\n".join(f"    {line}".rstrip() for line in code.src.strip().splitlines())
        name = "".join(part.capitalize() for part in self.layer.split("_"))
        return self.source.add_class(
            name, f"class {name}(nn.Module):\n    # Layer {self.layer}.\n{body}", needed
        )

    def module(self, module: nn.Module, where: str) -> dict[str, Any]:
        """Describe a module whose tensors have names that begin with ``where``.

        Raises:
            ConfigError: for hooks, and for attributes that cannot be written as data.
        """
        if is_compiled(module):
            raise ConfigError(
                f"{where}: expected a module as it was written, found one of torch.compile, which "
                f"cannot be exported; train it uncompiled, or {WAY_OUT}"
            )
        if has_hooks(module):
            raise ConfigError(
                f"{where}: {type(module).__name__} has hooks, which cannot be exported; do their "
                f"work in its forward, or {WAY_OUT}"
            )
        persistent = module._non_persistent_buffers_set
        return {
            "class": self.name(module),
            "attributes": {
                name: self._attribute(value, f"{where}.{name}")
                for name, value in module.__dict__.items()
                if name not in _INTERNAL and self.is_read(module, name)
            },
            "parameters": {
                name: None
                if value is None
                else {
                    "tensor": self._tensor(value, f"{where}.{name}"),
                    "requires_grad": value.requires_grad,
                }
                for name, value in module._parameters.items()
            },
            "buffers": {
                name: None
                if value is None
                else {
                    "tensor": self._tensor(value, f"{where}.{name}"),
                    "persistent": name not in persistent,
                }
                for name, value in module._buffers.items()
            },
            "modules": {
                name: None if inner is None else self.module(inner, f"{where}.{name}")
                for name, inner in module._modules.items()
            },
        }

    def _tensor(self, tensor: torch.Tensor, name: str) -> str:
        """Store a tensor and return its name, which is the first of its places."""
        name = self._names.setdefault(id(tensor), name)
        self.tensors[name] = tensor.detach().cpu().contiguous().clone()
        if tensor.stride() != torch.empty(tensor.shape, device="meta").stride():
            self.strides[name] = list(tensor.stride())
        return name

    def _attribute(self, value: Any, where: str) -> Any:
        if isinstance(value, float) and not math.isfinite(value):
            return {"float": value.hex()}
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, list):
            return [self._attribute(item, where) for item in value]
        if isinstance(value, tuple):
            return {"tuple": [self._attribute(item, where) for item in value]}
        if isinstance(value, Mapping):
            pairs = value.items()
            for key in value:
                if not isinstance(key, str | int | float | bool):
                    raise ConfigError(
                        f"{where}: expected plain keys, found {type(key).__name__}; {WAY_OUT}"
                    )
            return {"dict": [[key, self._attribute(each, where)] for key, each in pairs]}
        if name := self.reference(value):
            return {"import": name}
        raise ConfigError(
            f"{where}: expected a number, text, list, dict or importable function, found "
            f"{type(value).__name__} ({formless(value)}), which cannot be exported; keep it out of "
            f"the module, or {WAY_OUT}"
        )


_PLAIN_BASES = {"torch.nn.modules.module", "builtins"}


def _file(writer: _Writer, note: str) -> str:
    """Return the loader's own source, with the subnet's classes inserted."""
    head, table, rest = inspect.getsource(standalone).partition("_SUBNET_CLASSES: dict")
    _, _, rest = rest.partition("\n")
    head = head.replace("\n\n``load()``", f"\n\n{note}\n``load()``", 1)
    names = ", ".join(f'"{name}": {name}' for name in writer.written)
    imports, _, definitions = writer.source.text().partition("\n\n\n")
    new = [line for line in imports.splitlines() if line and f"{line}\n" not in head]
    head = head.replace("import torch\n", "\n".join(["import torch", *new, ""]), 1)
    parts = [head.strip(), definitions.strip(), f"{table}[str, type[nn.Module]] = {{{names}}}"]
    return "\n\n\n".join(part for part in parts if part) + "\n" + rest


def same_outputs(chain: ModuleChain, loaded: nn.Module, batch: dict[str, Any]) -> bool:
    """Return True if another form of a subnet is bitwise equal to the run's own layers."""
    with torch.no_grad():
        expected = chain(batch)
        found = loaded(*(batch[name] for name in chain.inputs))
    found = found if isinstance(found, tuple | list) else (found,)
    return len(found) == len(expected) and all(map(same_bits, expected, found))
