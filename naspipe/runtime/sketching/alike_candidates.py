"""Candidates of one block that are the same layer twice, which is hardly ever meant."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import shorten
from types import FunctionType
from typing import Any

import torch
from torch import nn

from naspipe.config.blocks import changed_reads
from naspipe.config.space import Block, Space
from naspipe.planning.cost import first_of_kind
from naspipe.runtime.layers.kept_state import HOOKS, TORCHS
from naspipe.runtime.sketching.sketched import SketchedLayers, call_key
from naspipe.runtime.sketching.structures import without_addresses

_LONGEST = 400
"""Characters of a module that are shown."""
_PLAIN = (int, float, complex, str, bytes, bool, type(None), torch.dtype, torch.Size)


def alike_note(space: Space, layers: SketchedLayers) -> str | None:
    """A line about the first candidates that are alike; None where there are none.

    Those that cannot be made without memory, or whose values could make a difference, are left out.
    """
    twins = first_of_kind(space)
    found = {block: alike for block in set(twins) if (alike := _alike(space, layers, block))}
    if not found:
        return None
    block = min(found)
    *first, last = found[block]
    module = layers.module(block, last)
    others = sum(twin in found for twin in twins) - 1
    more = f" (and so in {others} more block{'s' * (others > 1)})" if others else ""
    shown = shorten(without_addresses(repr(module)), _LONGEST, placeholder=" ...")
    k = _variable(space.blocks[block].candidates[last])
    return (
        f"block {space.labels[block]}: candidates {', '.join(map(str, first))} and {last} are "
        f"alike{more}: each makes {shown}; a factory made in a loop reads the loop's variable when "
        f"it is called, so write lambda {k}={k}: ...; if one layer twice is meant, say "
        f"Block(..., alike=True)"
    )


def changed_reads_note(space: Space) -> str | None:
    """A line about blocks whose factories read what had another value as the block was made."""
    found = [
        (label, changed)
        for label, block in zip(space.labels, space.blocks, strict=True)
        for changed in list(dict.fromkeys(c for f in block.candidates for c in changed_reads(f)))[
            :1
        ]
    ]
    if not found:
        return None
    label, (name, was, now) = found[0]
    others = len(found) - 1
    more = f" (and so in {others} more block{'s' * (others > 1)})" if others else ""
    return (
        f"block {label}: its factories read {name}, which was {was!r:.60} when the block was made "
        f"and is {now!r:.60} now{more}; a factory made in a loop reads the loop's variable when it "
        f"is called, so write lambda {name}={name}: ..."
    )


def _variable(factory: object) -> str:
    """What a factory reads from around it, as the variable of a loop."""
    code = getattr(factory, "__code__", None)
    return code.co_freevars[0] if code and len(code.co_freevars) == 1 else "k"


def _alike(space: Space, layers: SketchedLayers, position: int) -> list[int]:
    """The first candidates of a block that are alike: two or more, or none."""
    block = space.blocks[position]
    if not isinstance(block, Block) or block.alike:
        return []
    described: dict[str, list[tuple[int, nn.Module]]] = {}
    for candidate in range(len(block.candidates)):
        module = layers.module(position, candidate)
        if module is not None:
            described.setdefault(_described(module), []).append((candidate, module))
    found = [
        [number, *(other for other, its in group[place + 1 :] if _are_alike(module, its))]
        for group in described.values()
        for place, (number, module) in enumerate(group)
    ]
    return min((each for each in found if len(each) > 1), default=[])


def _described(module: nn.Module) -> str:
    tensors = [*module.named_parameters(), *module.named_buffers()]
    forms = [(name, tuple(each.shape), each.dtype) for name, each in tensors]
    return f"{without_addresses(repr(module))} {forms}"


def _are_alike(one: nn.Module, other: nn.Module) -> bool:
    """Whether two modules of the same description have the same parts in the same state."""
    parts = zip(one.modules(), other.modules(), strict=False)
    return all(_same_part(*pair) for pair in parts)


def _same_part(one: nn.Module, other: nn.Module) -> bool:
    if type(one) is not type(other) or any(vars(one)[name] for name in HOOKS):
        return False
    is_torchs = type(one).__module__.startswith("torch.nn.")
    if one._buffers and not is_torchs:
        return False  # their values are not known here
    mine, others = (dict(_state(each, is_torchs)) for each in (one, other))
    return _equal(mine, others)


def _state(module: nn.Module, plain_only: bool) -> Iterator[tuple[str, Any]]:
    """What a module keeps beside its parameters, buffers and parts."""
    for name, value in vars(module).items():
        if name not in TORCHS and (not plain_only or isinstance(value, (*_PLAIN, tuple))):
            yield name, value


def _equal(one: Any, other: Any) -> bool:
    """Whether two values are the same as far as can be known."""
    if one is other:
        return True
    if type(one) is not type(other) or isinstance(one, torch.Tensor):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_equal, one, other))
    try:
        if isinstance(one, FunctionType):
            return call_key(one) == call_key(other)
        return bool(one == other)
    except Exception:  # of a type of the user's, or a function that has itself in it
        return False
