"""A plain network as a space: one candidate in every block."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import torch
from torch import nn

from naspipe.config.blocks import CopyOf
from naspipe.config.errors import ConfigError
from naspipe.config.space import Block, Space
from naspipe.runtime.devices.tensor_bytes import tensor_bytes
from naspipe.runtime.layers.layer_store import shared, tensors_of
from naspipe.runtime.layers.module_copies import check_hooks_copied, copied


def chain(modules: Iterable[nn.Module], *, name: str = "network") -> Space:
    """A ``torch.nn.Sequential``, or modules in their order, as a space with one subnet.

    It trains as any space does: on stages and groups, with any budget, with the bits of the plain
    loop. The layers start as copies of the modules, with the weights that these have now and the
    hooks of their parameters. A digest of the weights is part of the run's definition.

    Args:
        modules: each takes what the one before returns: a tensor, or a tuple of tensors. The
            first takes the batch field ``input``; the last one's output goes to the loss.
        name: of the space.

    Raises:
        ConfigError: for anything but modules, or for none; for modules that share a tensor, as
            copies would not.
    """
    parts = _parts(modules)
    _check_parts_apart(parts)
    check_hooks_copied(parts)
    return _copied(parts, name)


def teacher_chain(modules: Iterable[nn.Module]) -> Space:
    """The same for a network that nobody trains: there, copies of what is shared stay equal."""
    return _copied(_parts(modules), "teacher")


def _copied(parts: Sequence[nn.Module], name: str) -> Space:
    blocks = [Block([CopyOf(part, copied)]) for part in parts]
    return Space(name, blocks, weights=modules_digest(parts))


def _parts(modules: Iterable[nn.Module]) -> list[nn.Module]:
    if isinstance(modules, nn.Module) and not isinstance(modules, nn.Sequential | nn.ModuleList):
        raise ConfigError(
            f"chain: expected a Sequential or a list of modules, found a {type(modules).__name__}; "
            f"give its parts in their order"
        )
    parts = list(modules)
    if not parts:
        raise ConfigError("chain: expected one module or more, found none")
    for position, part in enumerate(parts):
        if not isinstance(part, nn.Module):
            raise ConfigError(
                f"chain: expected modules, found a {type(part).__name__} at position {position}"
            )
    return parts


def _check_parts_apart(parts: Sequence[nn.Module]) -> None:
    owners: dict[int, int] = {}
    for position, part in enumerate(parts):
        for what, tensor in tensors_of(part):
            owner = owners.setdefault(tensor.untyped_storage()._cdata, position)
            if owner != position:
                raise shared(what, f"{owner}.0", f"{position}.0")


def modules_digest(modules: Iterable[nn.Module]) -> str:
    """Of every parameter and buffer of modules in their order, by place and name."""
    found = hashlib.blake2b(digest_size=16)
    for position, module in enumerate(modules):
        for name, value in module.state_dict().items():
            if not isinstance(value, torch.Tensor):
                continue
            found.update(f"{position}/{name}/{value.dtype}/{tuple(value.shape)}\0".encode())
            found.update(tensor_bytes(value.detach().cpu()).numpy().data)
    return found.hexdigest()
