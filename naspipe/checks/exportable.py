"""What an export can write of a module: which attributes can be stored as data, and how weights
that are computed before each forward are folded into plain tensors."""

from __future__ import annotations

import copy
import importlib
import inspect
import re
import types
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize, remove_spectral_norm, remove_weight_norm
from torch.nn.utils.parametrize import ParametrizationList
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from naspipe.checks.sketched import SketchedLayers
from naspipe.config.blocks import Block
from naspipe.config.space import Space
from naspipe.config.user_code import is_users_module, why_no_source
from naspipe.jobs.losses import TORCHS
from naspipe.plan.costs import first_of_kind

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_REMOVE = {WeightNorm: remove_weight_norm, SpectralNorm: remove_spectral_norm}

WAY_OUT = "run.layer(...) and run.shared(...) give the trained modules in Python"


def is_compiled(module: nn.Module) -> bool:
    return hasattr(module, "_torchdynamo_orig_callable") and hasattr(module, "_orig_mod")


def has_hooks(module: nn.Module) -> bool:
    """Return True if it has hooks other than those that :func:`folded` replaces by a weight."""
    hooks = [hook for name in _HOOKS for hook in getattr(module, name).values()]
    return any(type(hook) not in _REMOVE for hook in hooks)


def folded(module: nn.Module) -> nn.Module:
    """Return the module in evaluation mode, with parametrizations replaced by resulting tensors.

    The result is a copy, or the module itself if it has no parametrizations.
    """
    if not any(_is_parametrized(each) or _weight_hooks(each) for each in module.modules()):
        return module
    for inner in module.modules():
        for hook in _weight_hooks(inner):  # the last forward's weight cannot be copied with a graph
            inner.__dict__[hook.name] = getattr(inner, hook.name).detach()
    found = copy.deepcopy(module)
    for inner in list(found.modules()):
        if _is_parametrized(inner):
            _fold(inner)
        for hook in _weight_hooks(inner):
            _REMOVE[type(hook)](inner, hook.name)
    return found


def _fold(module: Any) -> None:
    """Like ``torch.nn.utils.parametrize.remove_parametrizations``, but also works on copies."""
    with torch.no_grad():
        values = {name: getattr(module, name).clone() for name in module.parametrizations}
    lists = module._modules.pop("parametrizations")
    module.__class__ = type(module).__mro__[1]
    for name, value in values.items():
        own = list(lists[name].parameters(recurse=False))
        if own:
            is_trained = any(each.requires_grad for each in own)
            module.register_parameter(name, nn.Parameter(value, requires_grad=is_trained))
        else:
            module.register_buffer(name, value)


def _is_parametrized(module: nn.Module) -> bool:
    found: bool = parametrize.is_parametrized(module)
    return found


def _weight_hooks(module: nn.Module) -> list[Any]:
    """Return the hooks that compute a weight before each forward."""
    return [hook for hook in module._forward_pre_hooks.values() if type(hook) in _REMOVE]


def class_of(module: nn.Module) -> type:
    """Return the class as it was written, without parametrizations and without NNI's wrapper."""
    kind = type(module)
    if _is_parametrized(module):
        kind = kind.__mro__[1]
    found: type = getattr(kind, "_bound_type", None) or kind
    return found


def formless(value: Any) -> str:
    """Describe the part of an attribute that cannot be stored as data; empty if there is none."""
    if value is None or isinstance(value, bool | int | float | str):
        return ""
    if isinstance(value, list | tuple):
        return next(filter(None, map(formless, value)), "")
    if isinstance(value, Mapping):
        keys = (key for key in value if not isinstance(key, str | int | float | bool))
        odd = next((f"a key of type {type(key).__name__}" for key in keys), "")
        return odd or formless(list(value.values()))
    if importable(value):
        return ""
    if isinstance(value, torch.Tensor):
        return "a tensor"
    if isinstance(value, types.FunctionType):
        return "a lambda" if value.__name__ == "<lambda>" else "a function inside a function"
    return f"of type {type(value).__name__}"


def importable(value: Any) -> str:
    """Return ``module:name`` of an importable function, class or dtype; otherwise empty."""
    if isinstance(value, torch.dtype):
        return f"torch:{str(value).removeprefix('torch.')}"
    if not isinstance(value, type | types.FunctionType | types.BuiltinFunctionType):
        return ""
    module, name = getattr(value, "__module__", None), value.__qualname__
    last = name.rpartition(".")[2]
    if getattr(torch, last, None) is value:  # torch's built-in functions have no ``__module__``
        return f"torch:{last}"
    if not module or not all(part.isidentifier() for part in name.split(".")):
        return ""
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError):
        return ""
    return f"{module}:{name}" if found is value else ""


_CONSTRUCTORS = ("__init__", "__new__", "__post_init__")
_PLAIN_BASES = {"torch.nn.modules.module", "builtins"}
_DYNAMIC = {"getattr", "vars", "__dict__"}


def export_note(space: Space, layers: SketchedLayers) -> str:
    """Return a line about the first layer that cannot be exported as it is, or an empty string."""
    for block in sorted(set(first_of_kind(space))):
        for candidate in range(len(space.blocks[block].candidates)):
            module = layers.module(block, candidate)
            label = space.label(block, candidate)
            is_choice = isinstance(space.blocks[block], Block)
            call = f"layer({label.replace('.', ', ')})" if is_choice else f"shared({label!r})"
            if why := "" if module is None else _obstacle(module, f"run.{call}"):
                return f"to export layer {label}, {why}"
    return ""


def _obstacle(module: nn.Module, call: str) -> str:
    """Describe the change that a layer needs for an export, and the alternative, or return ""."""
    anyway = f"; {call} gives the trained module anyway"
    for inner in _written(module):
        kind = class_of(inner)
        if is_compiled(inner):
            return f"it would have to be trained without torch.compile{anyway}"
        if has_hooks(inner):
            return f"the hooks of its {kind.__name__} would have to be part of a forward{anyway}"
        if why := why_no_source(kind):
            return (
                f"its class {kind.__name__} will be needed at the top of a module file: it {why}; "
                f"it may move there after the run"
            )
        for name, value in vars(inner).items() if is_users_module(kind.__module__) else ():
            if name not in TORCHS and (what := formless(value)) and _may_read(kind, name):
                return (
                    f"its {kind.__name__}.{name} would have to be plain, a buffer or a function "
                    f"at the top of a module, and is {what}{anyway}"
                )
    return ""


def _written(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the exported submodules; a parametrization is exported as its resulting tensor."""
    yield module
    for inner in () if is_compiled(module) else module.children():
        if not any(isinstance(each, ParametrizationList) for each in inner.children()):
            yield from _written(inner)


def _may_read(kind: type, name: str) -> bool:
    """Return False if no user method, except constructors, mentions the attribute in its source."""
    own = [each for each in kind.__mro__ if is_users_module(each.__module__)]
    if not {each.__module__ for each in kind.__mro__ if each not in own} <= _PLAIN_BASES:
        return True  # a library class may read any attribute
    for method in (pair for each in own for pair in vars(each).items()):
        if isinstance(method[1], types.FunctionType) and method[0] not in _CONSTRUCTORS:
            try:
                words = set(re.findall(r"\w+", inspect.getsource(method[1])))
            except (OSError, TypeError):
                return True
            if not words.isdisjoint({name, *_DYNAMIC}):
                return True
    return False
