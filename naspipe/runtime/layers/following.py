"""The next version of a layer that follows another one: a momentum teacher's (BYOL, section 3.1).

One form, in one place, always behind the source's WRITE of the same version::

    teacher.lerp_(student, 1 - tau)
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from naspipe.config.errors import ConfigError
from naspipe.config.rules import MomentumUpdate
from naspipe.runtime.layers.stored_layer import StoredLayer


@torch.no_grad()
def follow(layer: StoredLayer, source: StoredLayer, update: MomentumUpdate, tau: float) -> None:
    """Move a layer towards its source, in place.

    Args:
        layer: of the teacher.
        source: of the student, stepped already.
        update: what becomes of buffers.
        tau: how much of the layer stays.
    """
    source.at_hand()
    for name, parameter in layer.parameters.items():
        parameter.lerp_(source.parameters[name].to(parameter.device), 1.0 - tau)
    if update.buffers == "own":
        return
    sources = dict(source.module.named_buffers())
    for name, buffer in layer.module.named_buffers():
        value = sources[name].to(buffer.device)
        if update.buffers == "averaged" and buffer.is_floating_point():
            buffer.lerp_(value, 1.0 - tau)
        else:
            buffer.copy_(value)


def check_pair(layer: StoredLayer, source: StoredLayer) -> None:
    """A layer and its source must have the same parameters and buffers, by name and shape.

    Raises:
        ConfigError: naming the first that does not fit.
    """
    mine, theirs = dict(_shapes(layer)), dict(_shapes(source))
    for name in sorted(mine.keys() | theirs.keys()):
        if mine.get(name) != theirs.get(name):
            raise ConfigError(
                f"layer {layer.label} of the teacher: expected {name} as the student has it, "
                f"{theirs.get(name, 'nothing')}, found {mine.get(name, 'nothing')}"
            )


def _shapes(layer: StoredLayer) -> Iterator[tuple[str, str]]:
    for name, tensor in (*layer.parameters.items(), *layer.module.named_buffers()):
        yield name, f"{tuple(tensor.shape)} of {tensor.dtype}"
