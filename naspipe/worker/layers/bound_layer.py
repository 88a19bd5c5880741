"""A layer at the version that a pass uses: its forward, gradients, and edits of parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import torch
from torch import nn

from naspipe.config.errors import ConfigError
from naspipe.machine.device_waits import Wait, count

_NORMED = (nn.Embedding, nn.EmbeddingBag)


class EditedParameterError(ConfigError):
    """Raised if a layer's forward changes a parameter in a run that does not support this."""


def refused(layer: str, parameter: str, obstacle: str) -> EditedParameterError:
    """Return the error for such a layer, named as in ``layer 2.0 (Embedding)``.

    ``obstacle`` is the setting of the run that does not support the change.
    """
    return EditedParameterError(
        f"{layer}: its forward changes its own parameter {parameter}, which only a run with "
        f"rule exact, policy csp, one pass per step and neither recompute nor memory_budget "
        f"carries on as a plain loop does, found {obstacle}; train without it, or let the forward "
        f"compute with a changed copy and leave the parameter as it is"
    )


def obstacle_to_edits(
    policy: str, passes: int, recompute: bool = False, has_budget: bool = False
) -> str:
    """Return the setting of a run that does not support such a change; empty if none."""
    if policy != "csp":
        return f"policy {policy}"
    if passes > 1:
        return f"{passes} passes per step"
    if recompute:
        return "recompute"
    return "memory_budget" if has_budget else ""


def known_edit(module: nn.Module) -> str:
    """Return the name of a parameter that a torch module changes in its forward, or \"\"."""
    for name, part in module.named_modules():
        if isinstance(part, _NORMED) and part.max_norm is not None:
            return f"{name}.weight" if name else "weight"
    return ""


class ParameterMarks:
    """Records the state of parameters, to detect later which of them has changed.

    Torch counts changes in place, but not those made through ``parameter.data``. With
    ``looks_at_bits``, the bits are compared as well, which waits for the device.
    """

    __slots__ = ("_before", "_looks_at_bits", "_parameters")

    def __init__(self, parameters: Mapping[str, torch.Tensor], looks_at_bits: bool) -> None:
        self._parameters = parameters
        self._looks_at_bits = looks_at_bits
        self._before = [_mark(each, looks_at_bits) for each in parameters.values()]

    def changed(self) -> str:
        """Return the name of the first parameter that has changed; empty if none has."""
        for (name, each), before in zip(self._parameters.items(), self._before, strict=True):
            if _mark(each, self._looks_at_bits) != before:
                return name
        return ""


def _mark(tensor: torch.Tensor, looks_at_bits: bool) -> tuple[int, int, int]:
    counter = 0 if tensor.is_inference() else tensor._version
    return counter, tensor.data_ptr(), _checksum(tensor) if looks_at_bits else 0


def _checksum(tensor: torch.Tensor) -> int:
    """Return a checksum of all bits, computed with almost no extra memory."""
    value = tensor.detach()
    if value.layout != torch.strided or value.is_meta or not value.numel():
        return 0
    if not value.is_cpu:
        count(Wait.INPUT)
    kind = torch.int32 if value.itemsize % 4 == 0 else torch.uint8
    value = value.resolve_conj().resolve_neg().contiguous()
    flat = value.as_strided((value.numel(),), (1,), value.storage_offset())
    return int(flat.view(kind).sum(dtype=torch.int64))


Gradients = dict[str, torch.Tensor]
"""Gradients by parameter name; a parameter without one is absent, never zero."""

Apply = Callable[..., Any]
"""Called with a module, tensors and named settings; see :class:`naspipe.Elastic`."""

_set_counters = torch._C._autograd._unsafe_set_version_counter
"""The function with which ``torch.autograd._unsafe_preserve_version_counter`` restores counters."""


class BoundLayer:
    """A layer at one version: its forward, and the parameters that receive its gradients.

    Args:
        module: the layer's module.
        call: the layer's forward, which reads the module's own parameters.
        parameters: the module's parameters by name.
        is_first: whether this is the layer's first call in this process, which is checked closely.
        version: the module's tensors, each with the value that the forward and its backward read;
            None to read the present values.
    """

    def __init__(
        self,
        module: nn.Module,
        call: Callable[..., Any],
        parameters: Mapping[str, torch.Tensor],
        is_first: bool = False,
        version: Sequence[tuple[torch.Tensor, torch.Tensor]] | None = None,
    ) -> None:
        self.module = module
        self.parameters = parameters
        self.is_first = is_first
        self.edited = ""
        """The name of a parameter that the last call changed, or an empty string."""
        self._forward = call
        self._version = version
        self.is_version = version is not None
        """Whether this is a copy, separate from the tensors that become the next version."""
        self._is_in_place = version is None

    def call(self, *inputs: Any, **setting: Any) -> Any:
        return self.run(self._forward, *inputs, **setting)

    def run(self, function: Callable[..., Any], *inputs: Any, **setting: Any) -> Any:
        with self.in_place():
            marks = ParameterMarks(self.parameters, self.is_first)
            outputs = function(*inputs, **setting)
            self.edited = marks.changed()
            return outputs

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Give the module's own parameters the values of this version.

        The context is entered for the forward and again for the backward. The parameters remain the
        same objects and only their memory is exchanged, so every reader sees this version, whether
        it accesses them through a list of parameters, a hook, or a function that activation
        checkpointing calls during the backward.

        Autograd saves a parameter as an object, and refuses a backward if its version counter has
        changed since the forward. The counters are therefore 0 while a version is in place, and are
        restored afterwards. Updates in between do not affect the graphs of older versions, which
        use separate memory.
        """
        if self._is_in_place or self._version is None:
            yield
            return
        before = [(tensor, tensor.data, tensor._version) for tensor, _ in self._version]
        tensors = tuple([tensor for tensor, _ in self._version])
        for tensor, value in self._version:
            tensor.data = value
        _set_counters(tensors, (0,) * len(tensors))
        self._is_in_place = True
        try:
            yield
        finally:
            self._is_in_place = False
            for tensor, own, _ in before:
                tensor.data = own
            _set_counters(tensors, tuple([counter for _, _, counter in before]))

    def part_gradients(self, others: Iterable[torch.Tensor | None]) -> None:
        """Copy gradients that share the memory of one of the others.

        In ``x + p.view_as(x)``, the gradients of ``p`` and ``x`` are both that of the sum. An
        in-place change, such as clipping, must not change the gradients passed back along the
        chain. Gradients of one layer that share memory continue to do so, as in a plain loop.
        """
        having = [each for each in self.parameters.values() if each.grad is not None]
        for parameter, own in zip(having, apart([p.grad for p in having], others), strict=True):
            if own is not parameter.grad:
                parameter.grad = own

    def take_gradients(self) -> Gradients:
        gradients: Gradients = {}
        for name, parameter in self.parameters.items():
            if parameter.grad is not None:
                gradients[name] = parameter.grad
                parameter.grad = None
        return gradients


def apart(
    tensors: Sequence[torch.Tensor | None], others: Iterable[torch.Tensor | None]
) -> list[torch.Tensor | None]:
    """Copy the tensors that share memory with one of the others.

    Strides are kept, and tensors that share memory with each other continue to do so.
    """
    storages = (each.untyped_storage() for each in others if each is not None)
    taken = {(each.data_ptr(), each.data_ptr() + each.nbytes()) for each in storages}
    found = list(tensors)
    shared = [n for n, each in enumerate(found) if each is not None and _is_within(each, taken)]
    copies = deepcopy([found[number] for number in shared]) if shared else ()
    for number, copy in zip(shared, copies, strict=True):
        found[number] = copy
    return found


def _is_within(tensor: torch.Tensor, memory: Iterable[tuple[int, int]]) -> bool:
    begin = (tensor._values() if tensor.is_sparse else tensor).data_ptr()
    return any(first <= begin < end for first, end in memory)
