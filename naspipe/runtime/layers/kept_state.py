"""Whether a layer keeps anything from one forward to the next: if not, it has no versions.

Parameters and buffers are state. So is what a module keeps in attributes of Python: two forwards
through it must then come in their order. Whether it does cannot be seen for sure, so whatever
might be state counts as state. That costs time, and never a bit.
"""

from __future__ import annotations

import dis
import enum
from collections.abc import Iterator
from types import BuiltinFunctionType, CodeType, FunctionType
from typing import Any

import torch
from torch import nn

TORCHS = {*nn.Module().__dict__}
"""What every module has, whatever it computes."""
HOOKS = [name for name in TORCHS if name.endswith("_hooks")]
_SLOTS = ("_parameters", "_buffers")
_PLAIN = (
    int, float, complex, str, bytes, type(None), type, enum.Enum, torch.dtype, torch.device,
    torch.Size, BuiltinFunctionType,
)  # fmt: skip
_STORES = {"STORE_ATTR", "DELETE_ATTR", "STORE_GLOBAL", "DELETE_GLOBAL"}


def keeps_state(module: nn.Module) -> bool:
    """Whether a module has parameters, buffers, or anything else that a forward may change.

    A place for a parameter or a buffer counts, also when nothing is in it yet: a forward may fill
    it. Of modules that are not torch's own, plain attributes are no state as long as no method
    stores any. All else is: hooks, lists, tensors that are no buffers, objects of the user's.
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
    """Torch's modules without parameters and buffers keep nothing; a graph's code is made."""
    return kind.__module__.startswith(("torch.nn.", "torch.fx."))


def _is_plain(value: Any) -> bool:
    """Whether a value cannot change."""
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    if isinstance(value, FunctionType):
        return value.__closure__ is None and not _stores(value.__code__)
    return isinstance(value, _PLAIN)


def _methods(kind: type) -> Iterator[CodeType]:
    """What a user's module may run after it is made."""
    for each in kind.__mro__:
        if each is nn.Module or _is_torchs(each):
            return
        for name, value in vars(each).items():
            inner = getattr(value, "fget", None) or getattr(value, "__func__", value)
            if name != "__init__" and isinstance(inner, FunctionType):
                yield inner.__code__


def _stores(code: CodeType) -> bool:
    """Whether a function, or one inside it, stores an attribute or a variable of others."""
    for each in dis.get_instructions(code):
        is_others = each.opname == "STORE_DEREF" and each.argval in code.co_freevars
        if is_others or each.opname in _STORES:
            return True
    return any(_stores(each) for each in code.co_consts if isinstance(each, CodeType))
