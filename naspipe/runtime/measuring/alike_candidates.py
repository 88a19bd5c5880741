"""Candidates of one block that are the same layer twice, which is hardly ever meant."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import torch
from torch import nn

from naspipe.core.space import Block, Space
from naspipe.planning.cost import first_of_kind
from naspipe.runtime.measuring.sketched import SketchedLayers

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_TORCHS = {*nn.Module().__dict__}
"""What every module has, whatever it computes."""
_HOOKS = [name for name in _TORCHS if name.endswith("_hooks")]
_PLAIN = (int, float, complex, str, bytes, bool, type(None), torch.dtype, torch.Size)


def alike_note(space: Space, layers: SketchedLayers) -> str | None:
    """A line about the first candidates that are alike; None where there are none.

    Those that cannot be made without memory, or whose values could make a difference, are left out.
    """
    twins = first_of_kind(space)
    found = [
        (block, *pair)
        for block in sorted(set(twins))
        if (pair := _alike_pair(space, layers, block)) is not None
    ]
    if not found:
        return None
    block, first, second, module = found[0]
    others = sum(twin in {each for each, *_ in found} for twin in twins) - 1
    more = f" (and so in {others} more block{'s' * (others > 1)})" if others else ""
    shown = " ".join(repr(module).split())
    return (
        f"block {space.labels[block]}: candidates {first} and {second} are alike, {shown:.80}{more}"
        f": a factory made in a loop reads the loop's variable when it is called, so bind it, "
        f"lambda k=k: ...; for the same layer twice say Block(..., alike=True)"
    )


def _alike_pair(
    space: Space, layers: SketchedLayers, position: int
) -> tuple[int, int, nn.Module] | None:
    block = space.blocks[position]
    if not isinstance(block, Block) or block.alike:
        return None
    groups: dict[str, list[tuple[int, nn.Module]]] = {}
    for candidate in range(len(block.candidates)):
        module = layers.module(position, candidate)
        if module is not None:
            groups.setdefault(_described(module), []).append((candidate, module))
    pairs = (pair for group in groups.values() for pair in combinations(group, 2))
    alike = ((a, b, module) for (a, module), (b, other) in pairs if _are_alike(module, other))
    return min(alike, key=lambda each: each[:2], default=None)


def _described(module: nn.Module) -> str:
    tensors = [*module.named_parameters(), *module.named_buffers()]
    forms = [(name, tuple(each.shape), each.dtype) for name, each in tensors]
    return f"{_ADDRESS.sub('', repr(module))} {forms}"


def _are_alike(one: nn.Module, other: nn.Module) -> bool:
    """Whether two modules of the same description have the same parts in the same state."""
    parts = zip(one.modules(), other.modules(), strict=False)
    return all(_same_part(*pair) for pair in parts)


def _same_part(one: nn.Module, other: nn.Module) -> bool:
    if type(one) is not type(other) or any(vars(one)[name] for name in _HOOKS):
        return False
    is_torchs = type(one).__module__.startswith("torch.nn.")
    if one._buffers and not is_torchs:
        return False  # their values are not known here
    mine, others = (dict(_state(each, is_torchs)) for each in (one, other))
    return _equal(mine, others)


def _state(module: nn.Module, plain_only: bool) -> Iterator[tuple[str, Any]]:
    """What a module keeps beside its parameters, buffers and parts."""
    for name, value in vars(module).items():
        if name not in _TORCHS and (not plain_only or isinstance(value, (*_PLAIN, tuple))):
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
        return bool(one == other)
    except Exception:  # of a type of the user's, whose values cannot be compared
        return False
