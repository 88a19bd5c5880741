"""Buffers as a layer's forwards leave them: other values, other shapes, new ones, or none.

A forward may replace a buffer, let it grow or register another one, as caches of rotary embeddings
and observers of quantisation do. So whatever carries a layer carries its buffers with their shapes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import torch
from torch import nn

from naspipe.config.errors import ConfigError


def buffer_slots(module: nn.Module) -> Iterator[tuple[str, nn.Module, str]]:
    """Each buffer that a module has now: its full name, its owner and what that calls it."""
    for prefix, owner in module.named_modules():
        for key, buffer in owner._buffers.items():
            if buffer is not None:
                yield f"{prefix}.{key}" if prefix else key, owner, key


class SwappedBufferError(ConfigError):
    """A buffer is not what it was when its layer was made, and the layer is swapped."""


def swapped_misfit(label: str, name: str, what: str) -> SwappedBufferError:
    """What refuses such a buffer; ``what`` says what has become of it."""
    return SwappedBufferError(
        f"layer {label}: {name} {what}; a layer that is swapped keeps the buffers that it "
        f"was made with, at their sizes: register them all when it is made, each with "
        f"memory of its own, or train without memory_budget"
    )


def check_sizes(label: str, module: nn.Module, made: Mapping[str, int]) -> None:
    """A module must have no buffers but those that it was made with, and none may have grown.

    Args:
        label: what messages call the layer.
        module: the layer's.
        made: the bytes of its buffers as it was made, by name.

    Raises:
        SwappedBufferError: when it is not so.
    """
    for name, nbytes in buffer_bytes(module).items():
        if name not in made:
            raise swapped_misfit(label, f"buffer/{name}", NEW)
        if nbytes > made[name]:
            raise swapped_misfit(label, f"buffer/{name}", grown(made[name], nbytes))


NEW = "was not there when the layer was made"


def grown(before: int, nbytes: int) -> str:
    """How messages say that a buffer takes more than it did."""
    return f"grew from {before} to {nbytes} bytes"


def buffer_bytes(module: nn.Module) -> dict[str, int]:
    """What each buffer takes, by name."""
    return {
        name: 0 if (buffer := owner._buffers[key]) is None else buffer.nbytes
        for name, owner, key in buffer_slots(module)
    }


def slot_of(module: nn.Module, name: str) -> tuple[nn.Module, str]:
    """The owner of a buffer, which need not be there yet, and what that calls it.

    Raises:
        KeyError: when the module has no such part, or has something else of that name.
    """
    path, _, key = name.rpartition(".")
    try:
        owner = module.get_submodule(path)
    except AttributeError:
        raise KeyError(name) from None
    if key not in owner._buffers and hasattr(owner, key):
        raise KeyError(name)
    return owner, key


def replace_buffer(module: nn.Module, name: str, value: torch.Tensor) -> None:
    """Put another tensor in a buffer's place, also where one buffer has several names.

    Raises:
        KeyError: when the module has no place for it.
    """
    owner, key = slot_of(module, name)
    if key not in owner._buffers:
        owner.register_buffer(key, value)
        return
    before = owner._buffers[key]
    owner._buffers[key] = value
    if before is not None:
        for _, other, its_key in [*buffer_slots(module)]:
            if other._buffers[its_key] is before:
                other._buffers[its_key] = value


@torch.no_grad()
def fill_buffer(module: nn.Module, name: str, value: torch.Tensor) -> None:
    """Give a buffer a value: in its own memory if the shape fits, with a new tensor if not.

    Raises:
        KeyError: when the module has no place for it.
    """
    owner, key = slot_of(module, name)
    buffer = owner._buffers.get(key)
    if buffer is not None and buffer.shape == value.shape:
        buffer.copy_(value)
    else:
        device, dtype = (
            (value.device, value.dtype) if buffer is None else (buffer.device, buffer.dtype)
        )
        replace_buffer(module, name, value.detach().to(device, dtype, copy=True))


def drop_buffers(module: nn.Module, kept: Collection[str]) -> None:
    """Have no buffers but those with these names, or that are the same tensor as one of them."""
    there = [*buffer_slots(module)]
    stay = {id(owner._buffers[key]) for name, owner, key in there if name in kept}
    for _, owner, key in there:
        if id(owner._buffers[key]) not in stay:
            owner._buffers[key] = None
