"""Find the tensors and other objects that a function, an object or a module holds, with paths."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from itertools import chain
from types import FunctionType, MethodType, ModuleType
from typing import Any, TypeVar

import torch
from torch import nn

from naspipe.config.blocks import globals_read
from naspipe.config.errors import ConfigError
from naspipe.config.user_code import is_users_module
from naspipe.jobs.losses import TORCHS

_MOST = 20000
"""Maximum number of objects to visit."""


def held_tensors(root: object, name: str) -> Iterator[tuple[str, torch.Tensor]]:
    for path, thing in held_things(root, name):
        if isinstance(thing, torch.Tensor):
            yield path, thing


def held_things(root: object, name: str) -> Iterator[tuple[str, object]]:
    """Yield everything reachable from a root, with a path such as ``loss.model.0.weight``.

    The search follows the captured variables, defaults and globals of functions, and the attributes
    of users' objects. Libraries are skipped. Paths begin with ``name``, or with the name of a
    function's variable.
    """
    left: deque[tuple[str, object]] = deque([(name, root)])
    seen: dict[int, object] = {}
    while left and len(seen) < _MOST:
        path, thing = left.popleft()
        if id(thing) in seen:
            continue
        seen[id(thing)] = thing  # keeps a reference, so that its id is not reused
        yield path, thing
        if not isinstance(thing, torch.Tensor):
            left.extend(_inside(path, thing))


def _inside(path: str, thing: Any) -> Iterator[tuple[str, object]]:
    if isinstance(thing, nn.Module):
        own = (thing._parameters, thing._buffers, thing._modules)
        for slots in own:
            yield from ((f"{path}.{name}", each) for name, each in slots.items())
        for name, each in vars(thing).items():
            if name not in TORCHS:
                yield f"{path}.{name}", each
    elif isinstance(thing, list | tuple | set | frozenset | deque):
        yield from ((f"{path}[{place}]", each) for place, each in enumerate(thing))
    elif isinstance(thing, Mapping):
        yield from ((f"{path}[{key!r}]", each) for key, each in [*thing.items()])
    elif isinstance(thing, functools.partial):
        yield path, thing.func
        yield from ((f"{path}.args[{place}]", each) for place, each in enumerate(thing.args))
        yield from thing.keywords.items()
    elif isinstance(thing, MethodType):
        yield from ((path, thing.__self__), (path, thing.__func__))
    elif isinstance(thing, FunctionType):
        if is_users_module(thing.__module__ or ""):
            yield from variables_of(thing)
    elif isinstance(thing, type | ModuleType):
        return
    elif is_users_module(type(thing).__module__):
        for name, each in [*getattr(thing, "__dict__", {}).items()]:
            yield f"{path}.{name}", each
        for kind in type(thing).__mro__:
            slots = vars(kind).get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                yield f"{path}.{name}", getattr(thing, name, None)
        for name in ("__call__", "forward", "distill"):
            if isinstance(method := getattr(type(thing), name, None), FunctionType):
                yield path, method
    if isinstance(thing, nn.Module) and is_users_module(type(thing).__module__):
        yield path, type(thing).forward


def variables_of(function: FunctionType) -> Iterator[tuple[str, object]]:
    """Yield the captured variables, defaults and globals of a function."""
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # the variable has no value yet
            continue
    usual = function.__defaults__ or ()
    names = code.co_varnames[: code.co_argcount]
    yield from zip(names[len(names) - len(usual) :], usual, strict=True)
    yield from (function.__kwdefaults__ or {}).items()
    for name in sorted(globals_read(code) & function.__globals__.keys()):
        yield name, function.__globals__[name]


def leaves_of(tensors: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Yield the leaves that would receive a gradient in a backward from these tensors."""
    left: list[Any] = []
    for each in tensors:
        if each.grad_fn is not None:
            left.append(each.grad_fn)
        elif each.requires_grad:
            yield each
    seen: dict[int, Any] = {}
    while left:
        node = left.pop()
        if id(node) in seen:
            continue
        seen[id(node)] = node  # keeps a reference, so that its id is not reused
        if (leaf := getattr(node, "variable", None)) is not None:
            yield leaf
        left.extend(each for each, _ in node.next_functions if each is not None)


M = TypeVar("M", bound=nn.Module)


def copied(module: M, memo: dict[int, Any] | None = None) -> M:
    """Return a deep copy whose parameters and buffers have the hooks of the originals, in order.

    A hook that is a method, a ``partial`` or an object is copied with the module, so it uses the
    copy's tensors. A function is not copied; see :func:`check_hooks_copied`. ``memo`` is passed to
    :func:`copy.deepcopy`.
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
    return any(_hooks(each) for _, each in _named_tensors(module))


def check_hooks_copied(parts: Sequence[nn.Module]) -> None:
    """Check that hooks of separately copied modules do not refer to trained original tensors.

    Raises:
        ConfigError: if a hook that is a function has a variable with a parameter or buffer of a
            part, or if another hook holds one of another part.
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
    if isinstance(module, torch.Tensor):
        return iter([("", module)])
    return chain(module.named_parameters(), module.named_buffers())
