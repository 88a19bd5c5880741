"""The state that a module keeps between forwards: its buffers and other state.

A layer without state has no versions. Parameters and buffers are state, and so are values that a
module stores in Python attributes, because two forwards of such a module must run in order. Since
this cannot be determined for certain, anything that might be state counts as state, which may cost
time but never changes results. The statistics of batch normalisation can be collected and applied
later.
"""

from __future__ import annotations

import dis
import enum
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from types import BuiltinFunctionType, CodeType, FunctionType
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from naspipe.config.errors import ConfigError
from naspipe.jobs.losses import HOOKS, TORCHS

_SLOTS = ("_parameters", "_buffers")
_PLAIN = (
    int, float, complex, str, bytes, type(None), type, enum.Enum, torch.dtype, torch.device,
    torch.Size, BuiltinFunctionType,
)  # fmt: skip
_STORES = {"STORE_ATTR", "DELETE_ATTR", "STORE_GLOBAL", "DELETE_GLOBAL"}


def keeps_state(module: nn.Module) -> bool:
    """Return True if a module has parameters, buffers, or other state that a forward may change.

    An empty slot for a parameter or a buffer counts, because a forward may fill it. In modules that
    are not part of torch, plain attributes are not state if no method stores any. Everything else
    is state: hooks, lists, tensors that are not buffers, and objects of the user.
    """
    return any(map(_part_keeps_state, module.modules()))


def _part_keeps_state(part: nn.Module) -> bool:
    if any(vars(part)[name] for name in (*_SLOTS, *HOOKS)):
        return True
    own = [value for name, value in vars(part).items() if name not in TORCHS]
    if any(isinstance(value, torch.Tensor) for value in own):
        return True
    if _is_torchs(type(part)):
        return False
    return not all(map(_is_plain, own)) or any(map(_stores, _methods(type(part))))


def _is_torchs(kind: type) -> bool:
    """Return True for classes of torch, which keep no state besides parameters and buffers.

    This includes graph modules, whose code is generated.
    """
    return kind.__module__.startswith(("torch.nn.", "torch.fx."))


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    if isinstance(value, FunctionType):
        return value.__closure__ is None and not _stores(value.__code__)
    return isinstance(value, _PLAIN)


def _methods(kind: type) -> Iterator[CodeType]:
    """Yield the methods that a user's module may run after its construction."""
    for each in kind.__mro__:
        if each is nn.Module or _is_torchs(each):
            return
        for name, value in vars(each).items():
            inner = getattr(value, "fget", None) or getattr(value, "__func__", value)
            if name != "__init__" and isinstance(inner, FunctionType):
                yield inner.__code__


def _stores(code: CodeType) -> bool:
    """Return True if a function, or one nested in it, stores an attribute or an outer variable."""
    for each in dis.get_instructions(code):
        is_others = each.opname == "STORE_DEREF" and each.argval in code.co_freevars
        if is_others or each.opname in _STORES:
            return True
    return any(_stores(each) for each in code.co_consts if isinstance(each, CodeType))


def buffer_slots(module: nn.Module) -> Iterator[tuple[str, nn.Module, str]]:
    """Yield the full name, owner and key of each buffer that a module has now."""
    for prefix, owner in module.named_modules():
        for key, buffer in owner._buffers.items():
            if buffer is not None:
                yield f"{prefix}.{key}" if prefix else key, owner, key


class SwappedBufferError(ConfigError):
    """Raised if a buffer of a swapped layer no longer fits the memory laid out for it."""


def swapped_misfit(label: str, name: str, what: str) -> SwappedBufferError:
    return SwappedBufferError(
        f"layer {label}: {name} {what}; a layer that is swapped keeps the buffers that it "
        f"was made with, at their sizes: register them all when it is made, each with "
        f"memory of its own, or train without memory_budget"
    )


def check_sizes(label: str, module: nn.Module, made: Mapping[str, int]) -> None:
    """Raise SwappedBufferError if a module has new buffers or buffers that grew.

    ``made`` maps names of buffers to their sizes in bytes when the module was created.
    """
    for name, nbytes in buffer_bytes(module).items():
        if name not in made:
            raise swapped_misfit(label, f"buffer/{name}", NEW)
        if nbytes > made[name]:
            raise swapped_misfit(label, f"buffer/{name}", grown(made[name], nbytes))


NEW = "was not there when the layer was made"


def grown(before: int, nbytes: int) -> str:
    return f"grew from {before} to {nbytes} bytes"


def buffer_bytes(module: nn.Module) -> dict[str, int]:
    return {
        name: 0 if (buffer := owner._buffers[key]) is None else buffer.nbytes
        for name, owner, key in buffer_slots(module)
    }


def slot_of(module: nn.Module, name: str) -> tuple[nn.Module, str]:
    """Return the owner of a buffer, which need not exist yet, and its key in the owner."""
    path, _, key = name.rpartition(".")
    try:
        owner = module.get_submodule(path)
    except AttributeError:
        raise KeyError(name) from None
    if key not in owner._buffers and hasattr(owner, key):
        raise KeyError(name)
    return owner, key


def replace_buffer(module: nn.Module, name: str, value: torch.Tensor) -> None:
    """Replace a buffer by another tensor under all its names."""
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
    """Set a buffer's value, in its own memory if the shape matches, else with a new tensor."""
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
    """Remove all buffers except those with these names and other names of the same tensors."""
    there = [*buffer_slots(module)]
    stay = {id(owner._buffers[key]) for name, owner, key in there if name in kept}
    for _, owner, key in there:
        if id(owner._buffers[key]) not in stay:
            owner._buffers[key] = None


KNOWN = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
"""The norms whose statistics can be deferred."""

Statistics = dict[str, torch.Tensor]
"""Mean and variance of one pass, by the name of the running buffer."""

_RUNNING = ("running_mean", "running_var")
_COUNT = "num_batches_tracked"


def unknown_norm(module: nn.Module) -> str | None:
    """Return the name of a norm that keeps running statistics and cannot be deferred."""
    for name, part in module.named_modules():
        if isinstance(part, _NormBase) and part.track_running_stats and type(part) not in KNOWN:
            return f"{name or 'itself'} ({type(part).__name__})"
    return None


def other_buffers(module: nn.Module) -> bool:
    """Return True if a module has buffers other than statistics of these norms."""
    return any(type(owner) not in KNOWN for _, owner, _ in buffer_slots(module))


@contextmanager
def collected(module: nn.Module) -> Iterator[Statistics]:
    """Collect the batch statistics of the forward in this context; running ones stay unchanged."""
    norms = dict(_norms(module))
    before = {name: (dict(norm._buffers), norm.momentum) for name, norm in norms.items()}
    for norm in norms.values():
        # With zero buffers and momentum 1, the kernel leaves exactly the batch's statistics.
        for key, buffer in norm._buffers.items():
            norm._buffers[key] = None if buffer is None else torch.zeros_like(buffer)
        norm.momentum = 1.0
    found: Statistics = {}
    try:
        yield found
        for name, norm in norms.items():
            uses = int(_buffer(norm, _COUNT))
            if uses > 1:
                raise ConfigError(
                    f"norms=deferred: expected a norm to be used once in a forward, found "
                    f"{name} used {uses} times; use norms=ordered"
                )
            if uses:
                found.update({f"{name}.{key}": _buffer(norm, key) for key in _RUNNING})
    finally:
        for name, norm in norms.items():
            buffers, norm.momentum = before[name]
            norm._buffers.update(buffers)


@torch.no_grad()
def fold(module: nn.Module, statistics: Mapping[str, torch.Tensor]) -> None:
    """Apply one pass's statistics to the running ones."""
    for name, norm in _norms(module):
        if f"{name}.running_mean" not in statistics:
            continue
        count = int(_buffer(norm, _COUNT).add_(1))
        momentum = 1 / count if norm.momentum is None else norm.momentum
        for key in _RUNNING:
            batch = statistics[f"{name}.{key}"]
            _buffer(norm, key).mul_(1 - momentum).add_(batch, alpha=momentum)


def _buffer(norm: nn.Module, name: str) -> torch.Tensor:
    buffer = norm._buffers[name]
    assert buffer is not None, "a norm that tracks statistics has them all"
    return buffer


def _norms(module: nn.Module) -> Iterator[tuple[str, _BatchNorm]]:
    for name, part in module.named_modules():
        if type(part) in KNOWN and part.track_running_stats and part.training:
            yield name, part
