"""Initial weights of layers from a run, a file, or modules that were trained before."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn

from naspipe.checks.sketched import sketch
from naspipe.config.blocks import Block, Factory
from naspipe.config.errors import ConfigError, reason
from naspipe.config.space import Space
from naspipe.inputs.run import Run, loss_layer_of
from naspipe.machine.staging import tensor_bytes
from naspipe.plan.costs import first_of_kind
from naspipe.store.checkpoints import read_checkpoint
from naspipe.store.run_directory import RunDirectory
from naspipe.worker.checkpoints.restored import from_raw
from naspipe.worker.layers.kept_state import fill_buffer

Weights = Run | str | Path | nn.Module | Sequence[nn.Module] | Mapping[str, Any]
"""Type of ``init_from``; see :func:`begin_with`."""

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class _Found:
    """Tensors by name, ``LABEL.NAME`` or ``POSITION.NAME``."""

    where: str
    tensors: Tensors
    is_whole: bool
    """True if tensors are required for every layer of the space."""


def begin_with(space: Space, source: Weights) -> tuple[Space, Mapping[str, Any]]:
    """Return the space with layers that start from given weights, and the entry for the manifest.

    Args:
        space: the space of these layers. Their factories still make their random draws first.
        source: one of: a run or its directory, in which case layers that it never trained start as
            drawn; a state dict, or a safetensors or ``.pt`` file with one, with names
            ``LABEL.NAME``, as in ``3.1.linear.weight``, or, if every block has one candidate,
            ``POSITION.NAME``, as in a Sequential; a module or a list of modules with such names; a
            mapping from labels to modules, in which case other layers start as drawn.

    Raises:
        ConfigError: for any other source, or if names or shapes do not match those of the layers.
    """
    found = _find(source)
    layers = _by_layer(space, found)
    digest = _digest(layers)
    blocks = []
    for position, block in enumerate(space.blocks):
        made = [
            _Filled(factory, layers[position, number]) if (position, number) in layers else factory
            for number, factory in enumerate(block.candidates)
        ]
        is_choice = isinstance(block, Block)
        own = {"candidates": tuple(made)} if is_choice else {"factory": made[0]}
        blocks.append(replace(block, **own))
    begun = Space(
        space.name,
        blocks,
        space.decisions,
        space.proof,
        takes_input=space.takes_input,
        weights=digest,
    )
    return begun, {"from": found.where, "digest": digest, "layers": len(layers)}


@dataclass(frozen=True, slots=True)
class _Filled:
    """Makes a layer and overwrites its drawn values."""

    factory: Factory
    values: Tensors

    @property
    def original(self) -> Any:
        """The module that the factory copies, if any."""
        return getattr(self.factory, "original", None)

    def __call__(self) -> Any:
        return self._fill(self.factory())

    def in_place(self) -> Any:
        """Return the original itself, overwritten; see :class:`naspipe.config.blocks.CopyOf`."""
        factory: Any = self.factory
        return self._fill(factory.in_place())

    def _fill(self, module: Any) -> Any:
        if isinstance(module, nn.Module):
            with torch.no_grad():
                for name, tensor in _tensors(module):
                    if name not in self.values:
                        continue
                    if isinstance(tensor, nn.Parameter):
                        tensor.copy_(self.values[name])
                    else:
                        fill_buffer(module, name, self.values[name])
        return module


def _find(source: Any) -> _Found:
    if isinstance(source, Run):
        source = source.directory.path
    if isinstance(source, str | Path):
        path = Path(source)
        return _of_run(path) if path.is_dir() else _of_file(path)
    if isinstance(source, nn.Module):
        return _Found(f"a {type(source).__name__}", _plain(source.state_dict(), "a module"), True)
    if isinstance(source, Mapping) and any(isinstance(each, nn.Module) for each in source.values()):
        return _Found("modules by label", _of_labels(source), False)
    if isinstance(source, Mapping):
        return _Found("a state dict", _plain(source, "a state dict"), True)
    if isinstance(source, Sequence) and all(isinstance(each, nn.Module) for each in source):
        tensors = _plain(nn.Sequential(*source).state_dict(), "modules")
        return _Found(f"{len(source)} modules", tensors, True)
    raise ConfigError(
        f"init_from: expected a run, its directory, a state dict, a file of one or modules, found "
        f"{type(source).__name__}"
    )


def _of_run(path: Path) -> _Found:
    directory = RunDirectory(path)
    manifest = directory.read_manifest()
    status, loss_layer = manifest.get("status"), loss_layer_of(manifest)
    if status != "complete":
        raise ConfigError(
            f"init_from {path}: expected a run that is complete, found one that is {status}; "
            f"finish it with resume first"
        )
    tensors = {}
    for name, raw in read_checkpoint(directory.checkpoint("final")).tensors.items():
        _, label, kind, key = name.split("/", 3)
        if kind in ("param", "buffer") and label != loss_layer:
            tensors[f"{label}.{key}"] = from_raw(raw)
    return _Found(str(path), tensors, False)


def _of_file(path: Path) -> _Found:
    try:
        if path.suffix == ".safetensors":
            found: Any = load_file(path)
        else:
            found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged files raise errors of many types
        raise ConfigError(
            f"init_from {path}: expected a run directory, or a state dict as safetensors or as "
            f"torch saves it (tensors alone), found {reason(error)}"
        ) from error
    return _Found(str(path), _plain(found, str(path)), True)


def _of_labels(source: Mapping[str, Any]) -> Tensors:
    for label, module in source.items():
        if not isinstance(module, nn.Module):
            raise ConfigError(
                f"init_from: expected a module for each label, found {label!r} with a "
                f"{type(module).__name__}"
            )
    return {
        f"{label}.{name}": value
        for label, module in source.items()
        for name, value in _plain(module.state_dict(), label).items()
    }


def _plain(found: Any, where: str) -> Tensors:
    values = found.items() if isinstance(found, Mapping) else [("it", found)]
    for name, value in values:
        if not isinstance(found, Mapping) or not isinstance(value, torch.Tensor):
            raise ConfigError(
                f"init_from {where}: expected tensors by name, found {name} of type "
                f"{type(value).__name__}"
            )
    return {name: value.detach().to("cpu", copy=True) for name, value in values}


def _by_layer(space: Space, found: _Found) -> dict[tuple[int, int], Tensors]:
    """Return the tensors of each layer, by position, candidate and name; check their shapes."""
    sketched, shapes = _sketched(space), dict[str, tuple[tuple[int, int], str, torch.Tensor]]()
    by_position = all(len(block.candidates) == 1 for block in space.blocks)
    needed: dict[str, set[str]] = {}
    has_positions = by_position and any(name.startswith("0.") for name in found.tensors)
    for (position, candidate), module in sketched.items():
        label = space.label(position, candidate)
        is_named = any(name.startswith(f"{label}.") for name in found.tensors)
        prefix = str(position) if has_positions and not is_named else label
        persistent = set(module.state_dict())
        for name, tensor in _tensors(module):
            shapes[f"{prefix}.{name}"] = (position, candidate), name, tensor
        once = {name for name, _ in (*module.named_parameters(), *module.named_buffers())}
        needed[prefix] = {f"{prefix}.{name}" for name in once & persistent}
    _check_names(found, set(shapes), needed)
    layers: dict[tuple[int, int], Tensors] = {}
    for name, value in found.tensors.items():
        layer, own, tensor = shapes[name]
        if value.shape != tensor.shape and not _has_grown(tensor, value):
            raise ConfigError(
                f"init_from {found.where}: expected {name} of shape {tuple(tensor.shape)}, found "
                f"{tuple(value.shape)}"
            )
        layers.setdefault(layer, {})[own] = value
    return layers


def _check_names(found: _Found, known: set[str], needed: Mapping[str, set[str]]) -> None:
    """Check that all names are known and that no layer is incomplete.

    Layers without any tensor are allowed unless ``found.is_whole``.
    """
    given = set(found.tensors)
    if unknown := sorted(given - known):
        raise ConfigError(
            f"init_from {found.where}: expected names such as {', '.join(sorted(known)[:2])}, "
            f"found {unknown[0]} ({len(unknown)} of {len(given)} are unknown); rename them, or "
            f"give a mapping from labels to modules"
        )
    for names in needed.values():
        missing = sorted(names - given)
        if missing and (found.is_whole or len(missing) < len(names)):
            raise ConfigError(
                f"init_from {found.where}: expected {missing[0]}, found nothing of that name; give "
                f"all tensors of a layer, and a mapping from labels to modules for some layers"
            )


def _sketched(space: Space) -> dict[tuple[int, int], nn.Module]:
    """Return all layers without values; layers of the same kind are made once."""
    made: dict[tuple[int, int], nn.Module] = {}
    for position, twin in enumerate(first_of_kind(space)):
        for candidate in range(len(space.blocks[position].candidates)):
            if twin == position:
                made[position, candidate] = sketch(space, position, candidate)
            made[position, candidate] = made[twin, candidate]
    return made


def _tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield parameters and buffers under all their names."""
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)


def _has_grown(tensor: torch.Tensor, value: torch.Tensor) -> bool:
    """Return True if this is a buffer that forwards may have lengthened, such as a cache."""
    return not isinstance(tensor, nn.Parameter) and tensor.dim() == value.dim()


def _digest(layers: Mapping[tuple[int, int], Tensors]) -> str:
    found = hashlib.blake2b(digest_size=16)
    for (position, candidate), values in sorted(layers.items()):
        for name, value in sorted(values.items()):
            form = f"{position}.{candidate}/{name}/{value.dtype}/{tuple(value.shape)}\0"
            found.update(form.encode())
            found.update(tensor_bytes(value).numpy().data)
    return found.hexdigest()
