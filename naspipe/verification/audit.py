"""Observe what user code does in a plain loop, so that a difference comes with its likely reason.

A run and its plain loop differ where code reaches past what the pipeline sees: a gradient for a
tensor outside the layers, a forward that changes its own parameters or buffers, a hook. None of
these has to be a fault, so the observations are reported only with a difference.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from naspipe.runtime.layers.held_tensors import held_tensors, leaves_of
from naspipe.verification.plain_layer import NORMS

Hint = tuple[str, str]
"""The label of a layer, empty for the loss, and what was observed of it."""

_HOOKS = (
    "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks",
)  # fmt: skip


class Audit:
    """Collects observations of one stream; each is reported once."""

    def __init__(self) -> None:
        self._known: set[Hint] = set()
        self._new: list[Hint] = []

    def take(self) -> tuple[Hint, ...]:
        """What was observed since the last call."""
        found, self._new = tuple(self._new), []
        return found

    def look_at_hooks(self, label: str, module: nn.Module) -> None:
        """Note the hooks of a layer's modules and parameters."""
        for name, part in module.named_modules():
            if any(getattr(part, each, None) for each in _HOOKS):
                self.note(label, f"module {name or type(part).__name__} has a hook")
        for name, parameter in module.named_parameters():
            if parameter._backward_hooks:
                self.note(label, f"parameter {name} has a hook")

    @contextmanager
    def forward(self, label: str, module: nn.Module) -> Iterator[None]:
        """Inside, a layer is called; notes the parameters and buffers that the call changes."""
        before = {name: (id(each), each._version) for name, each in _tensors(module)}
        yield
        for name, each in _tensors(module):
            if before.pop(name, None) != (id(each), each._version):
                self.note(label, f"its forward changes {name}")
        for name in before:
            self.note(label, f"its forward removes {name}")

    def look_at_loss(
        self, name: str, loss: object, value: torch.Tensor, inside: Collection[int]
    ) -> None:
        """Note the leaves of a loss's graph that no layer has.

        Args:
            name: of the space, under which messages name the loss.
            loss: the user's, which is searched for what holds a leaf.
            value: the loss of one pass.
            inside: the ``id`` of each parameter and buffer of the layers.
        """
        outside = {id(leaf): leaf for leaf in leaves_of([value]) if id(leaf) not in inside}
        if not outside:
            return
        held = {id(tensor): path for path, tensor in held_tensors(loss, name)}
        for key, leaf in outside.items():
            where = held.get(key, "something outside the layers and the loss")
            shape = list(leaf.shape)
            self.note("", f"a gradient reaches a tensor of shape {shape} held by {where}")

    def note(self, label: str, text: str) -> None:
        """Note something of a layer, or of the loss where the label is empty."""
        if (label, text) not in self._known:
            self._known.add((label, text))
            self._new.append((label, text))


def _tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    for name, parameter in module.named_parameters():
        yield f"parameter {name}", parameter
    for prefix, part in module.named_modules():
        for key, buffer in part._buffers.items():
            if buffer is not None and not isinstance(part, NORMS):
                yield f"buffer {prefix}.{key}" if prefix else f"buffer {key}", buffer
