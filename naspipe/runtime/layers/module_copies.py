"""Copies of modules that keep the hooks of their tensors.

``copy.deepcopy`` of a parameter copies its values and leaves its hooks out, so a gradient mask or
a clipping by value that a user has registered would be dropped silently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from itertools import chain
from types import FunctionType
from typing import Any, TypeVar

import torch
from torch import nn

from naspipe.config.errors import ConfigError
from naspipe.runtime.layers.held_tensors import held_tensors

M = TypeVar("M", bound=nn.Module)


def copied(module: M, memo: dict[int, Any] | None = None) -> M:
    """A deep copy whose parameters and buffers have the hooks of the originals, in their order.

    A hook that is a method, a ``partial`` or an object is copied along with the module, so it uses
    the copy's tensors. A function is not copied: see :func:`check_hooks_copied`.

    Args:
        module: what is copied.
        memo: as of :func:`copy.deepcopy`.
    """
    memo = {} if memo is None else memo
    found = deepcopy(module, memo)
    for _, tensor in _named_tensors(module):
        copy = memo.get(id(tensor))
        if copy is None or copy is tensor or not _hooks(tensor) or _hooks(copy):
            continue
        requires_grad = copy.requires_grad
        copy.requires_grad_(True)  # torch registers no hook on a frozen tensor
        for hook in (tensor._backward_hooks or {}).values():
            copy.register_hook(deepcopy(hook, memo))
        for hook in _late_hooks(tensor).values():
            copy.register_post_accumulate_grad_hook(deepcopy(hook, memo))
        copy.requires_grad_(requires_grad)
    return found


def is_hooked(module: nn.Module) -> bool:
    """Return True if a parameter or buffer of the module has a hook."""
    return any(_hooks(each) for _, each in _named_tensors(module))


def check_hooks_copied(parts: Sequence[nn.Module]) -> None:
    """Hooks of modules that are copied may not hold the originals of what is trained.

    Args:
        parts: each is copied by itself.

    Raises:
        ConfigError: for a function with a parameter or buffer of a part in a variable, and for
            another hook that holds one of another part.
    """
    owners = {
        id(tensor): (position, name)
        for position, part in enumerate(parts)
        for name, tensor in _named_tensors(part)
    }
    for position, part in enumerate(parts):
        for name, tensor in _named_tensors(part):
            for hook in _hooks(tensor):
                for path, held in held_tensors(hook, "hook"):
                    owner, own_name = owners.get(id(held), (-1, ""))
                    if owner < 0 or (owner == position and not isinstance(hook, FunctionType)):
                        continue
                    raise ConfigError(
                        f"module {position} ({type(part).__name__}): expected the hook on {name} "
                        f"to hold no tensor that is trained, found {path}, which is {own_name} of "
                        f"module {owner}: a run trains a copy of it; make the modules in "
                        f"factories, as in npp.Shared('stem', make_stem), where the hook holds "
                        f"what is trained"
                    )


def _hooks(tensor: torch.Tensor) -> list[Callable[..., Any]]:
    return [*(tensor._backward_hooks or {}).values(), *_late_hooks(tensor).values()]


def _late_hooks(tensor: torch.Tensor) -> Mapping[int, Callable[..., Any]]:
    return getattr(tensor, "_post_accumulate_grad_hooks", None) or {}


def _named_tensors(module: nn.Module | torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a module; of a candidate that is a parameter itself, the parameter."""
    if isinstance(module, torch.Tensor):
        return iter([("", module)])
    return chain(module.named_parameters(), module.named_buffers())
