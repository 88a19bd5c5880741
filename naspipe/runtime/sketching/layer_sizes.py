"""Exact sizes of every layer of a space, without making their weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from naspipe.config.space import Space
from naspipe.data.keyed.global_draws import kept_draws
from naspipe.planning.cost import first_of_kind
from naspipe.planning.size import LayerSize, SizeTable
from naspipe.runtime.devices.host_arena import round_up
from naspipe.runtime.forking.fitness import done_fit
from naspipe.runtime.jobs.workload import Workload
from naspipe.runtime.layers.layer_layout import StateSizes, lay_out
from naspipe.runtime.layers.layer_store import check_sized
from naspipe.runtime.layers.norm_statistics import other_buffers
from naspipe.runtime.layers.stored_layer import StoredLayer
from naspipe.runtime.sketching.unfilled import Unfilled


def measure_sizes(workload: Workload) -> SizeTable:
    """What every layer takes on the device, each kind of block looked at once.

    Needs the memory of one parameter's optimizer step at a time, and draws nothing from
    torch's generator.

    Raises:
        ConfigError: when a factory makes no module, or one whose tensors cannot be moved.
    """
    twins = first_of_kind(workload.space)
    if workload.recipe.parameter_groups:  # which go by the layers' names
        twins = tuple(range(len(workload.space)))
    kinds = sorted(set(twins))
    found = done_fit(lambda: {"rows": _rows(workload, kinds)}, "measuring the layers' sizes")
    rows = (tuple(LayerSize(*size) for size in row) for row in found["rows"])
    return SizeTable(twins, dict(zip(kinds, rows, strict=True)))


def _rows(workload: Workload, kinds: Sequence[int]) -> list[list[LayerSize]]:
    """Sizes by kind of block and candidate."""
    learnt = StateSizes(workload.definition.recipe)
    candidates = [range(len(workload.space.blocks[kind].candidates)) for kind in kinds]
    return [
        [_size(workload, kind, candidate, learnt) for candidate in those]
        for kind, those in zip(kinds, candidates, strict=True)
    ]


def buffered_layers(space: Space, defers_norms: bool = False) -> frozenset[tuple[int, int]]:
    """Block and candidate of the layers with buffers: their forwards may leave something there.

    Those of batch normalisation are left alone by forwards where they are deferred. Draws nothing
    from torch's generator.

    Raises:
        ConfigError: when a factory makes no module.
    """
    has_buffers = other_buffers if defers_norms else _any_buffers
    twins = first_of_kind(space)
    known = {
        (twin, candidate): has_buffers(sketch(space, twin, candidate))
        for twin in sorted(set(twins))
        for candidate in range(len(space.blocks[twin].candidates))
    }
    return frozenset(
        (block, candidate)
        for block, twin in enumerate(twins)
        for candidate in range(len(space.blocks[block].candidates))
        if known[twin, candidate]
    )


def _any_buffers(module: nn.Module) -> bool:
    return any(True for _ in module.buffers())


def sketch(space: Space, block: int, candidate: int) -> nn.Module:
    """A candidate's module without memory for its tensors.

    It is a real one where its factory needs values, or lets tensors share their memory.

    Raises:
        ConfigError: when the factory makes no module, or one without sizes.
    """
    factory = space.blocks[block].candidates[candidate]
    with kept_draws():
        module = _sizes_without_memory(factory)
        if module is None:
            module = factory()
    check_sized(space.label(block, candidate), module)
    made: nn.Module = module
    return made


def _sizes_without_memory(factory: Callable[[], Any]) -> Any:
    """What the factory makes on torch's meta device; None where that cannot be relied on."""
    try:
        with torch.device("meta"), Unfilled():
            module = factory()
    except Exception:  # whatever is wrong is said when the real one is made
        return None
    if isinstance(module, nn.Module):
        tensors = [*chain(module.parameters(), module.buffers())]
        if any(map(is_lazy, tensors)):
            return None
        if len({tensor.untyped_storage()._cdata for tensor in tensors}) < len(tensors):
            return None
    return module


def _size(workload: Workload, block: int, candidate: int, learnt: StateSizes) -> LayerSize:
    space = workload.space
    layer = StoredLayer(
        space.label(block, candidate),
        space.blocks[block].rule,
        sketch(space, block, candidate),
        workload.definition.recipe,
    )
    layout = lay_out(layer, learnt)
    return LayerSize(
        state_bytes=layout.nbytes,
        parameter_bytes=sum(round_up(slot.nbytes) for slot, _ in layout.parameters),
        writes_forward=any(True for _ in layer.module.buffers()),
    )
