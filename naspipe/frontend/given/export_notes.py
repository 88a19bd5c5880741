"""What is said before the start of layers that no export could write."""

from __future__ import annotations

from collections.abc import Iterator
from types import CodeType, FunctionType

from torch import nn
from torch.nn.utils.parametrize import ParametrizationList

from naspipe.config.space import Block, Space
from naspipe.config.user_code import is_users_module, why_no_source
from naspipe.planning.cost import first_of_kind
from naspipe.runtime.sketching.plain_forms import class_of, formless, has_hooks, is_compiled
from naspipe.runtime.sketching.sketched import SketchedLayers

_CONSTRUCTORS = ("__init__", "__new__", "__post_init__")
_INTERNAL = frozenset(nn.Module().__dict__)
_PLAIN_BASES = {"torch.nn.modules.module", "builtins"}
_DYNAMIC = {"getattr", "vars", "__dict__"}


def export_note(space: Space, layers: SketchedLayers) -> str:
    """A line that names the first such layer; nothing where there is none."""
    for block in sorted(set(first_of_kind(space))):
        for candidate in range(len(space.blocks[block].candidates)):
            module = layers.module(block, candidate)
            label = space.label(block, candidate)
            is_choice = isinstance(space.blocks[block], Block)
            call = f"layer({label.replace('.', ', ')})" if is_choice else f"shared({label!r})"
            if why := "" if module is None else _why(module, f"run.{call}"):
                return f"to export layer {label}, {why}"
    return ""


def _why(module: nn.Module, call: str) -> str:
    """What of a layer would have to be otherwise, and the way out; nothing where it has a form."""
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
            if name not in _INTERNAL and (what := formless(value)) and _reads(kind, name):
                return (
                    f"its {kind.__name__}.{name} would have to be plain, a buffer or a function "
                    f"at the top of a module, and is {what}{anyway}"
                )
    return ""


def _written(module: nn.Module) -> Iterator[nn.Module]:
    """All in it but parametrizations, of which no more is written than what comes out of them."""
    yield module
    for inner in () if is_compiled(module) else module.children():
        if not any(isinstance(each, ParametrizationList) for each in inner.children()):
            yield from _written(inner)


def _reads(kind: type, name: str) -> bool:
    """Whether a method of the user's may read an attribute, once the module is made."""
    own = [each for each in kind.__mro__ if is_users_module(each.__module__)]
    if not {each.__module__ for each in kind.__mro__ if each not in own} <= _PLAIN_BASES:
        return True  # of a library's class all is kept
    methods = (pair for each in own for pair in vars(each).items())
    codes = (
        f.__code__ for n, f in methods if isinstance(f, FunctionType) and n not in _CONSTRUCTORS
    )
    return any(not _names(code).isdisjoint({name, *_DYNAMIC}) for code in codes)


def _names(code: CodeType) -> set[str]:
    inner = [_names(each) for each in code.co_consts if isinstance(each, CodeType)]
    return set(code.co_names).union(*inner)
