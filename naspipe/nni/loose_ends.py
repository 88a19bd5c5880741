"""Cells that return only the nodes which no other node of theirs reads (``loose_end``).

In the space such a cell returns all nodes. Which are open follows from what its nodes read, and so
does the number of channels that the next layers are made for: each has a candidate per number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

from naspipe.data.keyed.global_draws import kept_draws
from naspipe.nni.library import library
from naspipe.nni.mutables import Sample, call_open

Ends = tuple[int, ...]
"""The nodes of a cell that are open, as the cell counts them."""

_SIZED_BY: WeakKeyDictionary[nn.Module, tuple[Any, ...]] = WeakKeyDictionary()
"""Of modules that are made for the open ends of cells: these cells, one for each label."""


def is_loose(module: nn.Module) -> bool:
    """Whether it is such a cell, with inputs to choose."""
    return isinstance(module, library().cell) and module.merge_op == "loose_end"


def cells_that_size(module: nn.Module) -> tuple[Any, ...]:
    """The cells whose number of open ends a module is made for."""
    return _SIZED_BY.get(module, ())


def input_labels(cell: Any) -> tuple[str, ...]:
    """The labels that say what its nodes read."""
    return tuple(dict.fromkeys(each.label for node in cell.inputs for each in node))


def open_ends(cell: Any, sample: Sample) -> Ends:
    """The nodes that no other node reads, in an architecture."""
    used = {node for label in input_labels(cell) for node in sample[label]}
    return tuple(node for node in cell.output_node_indices if node not in used)


def variants(cell: Any, *, by_number: bool) -> Iterator[Sample]:
    """What the nodes read, for every set of open ends; or for every number of them, one of each."""
    *others, last = cell.output_node_indices
    for count in range(len(others) + 1):
        for some in combinations(others, count):
            yield _reading(cell, (*some, last))
            if by_number:
                break


def _reading(cell: Any, ends: Ends) -> Sample:
    """Inputs that leave these nodes open, and no others.

    Every other node is read once, by the last one that has an input left: a node has all slots that
    an earlier one has but its own, so there is always one.
    """
    sample: Sample = {}
    slots: list[str] = []
    for node, inputs in zip(cell.output_node_indices[::-1], cell.inputs[::-1], strict=True):
        if node not in ends:
            sample[slots.pop()] = [node]
        slots += [each.label for each in inputs if each.label not in slots]
    return {label: [0] for label in slots} | sample


def find_sized(
    space: nn.Module,
    values: Mapping[str, Any],
    model_of: Callable[[Sample], nn.Module],
    modules_of: Callable[[Sample, nn.Module], Mapping[str, Mapping[str, nn.Module]]],
) -> None:
    """Note which modules of a space NNI makes for the open ends of which cells.

    Args:
        space: with such cells, or without.
        values: of every label.
        model_of: NNI's own model of an architecture.
        modules_of: what stands in it for the modules at the space's paths.
    """
    cells = {cell.label: cell for cell in space.modules() if is_loose(cell)}
    if not cells:
        return
    sample: Sample = {label: options[-1] for label, options in values.items()}
    for cell in cells.values():
        sample |= {label: [0] for label in input_labels(cell)}  # all are open, as in the space
    with kept_draws():
        model = model_of(sample)
        places = {id(module): path for path, module in model.named_modules()}
        found = modules_of(sample, model)
        shapes = _shapes(model)
        for cell in cells.values():
            other = _shapes(model_of({**sample, **next(variants(cell, by_number=True))}))
            differ = [name for name, shape in shapes.items() if other.get(name) != shape]
            for path, parts in found.items():
                outer = space.get_submodule(path.rpartition(".")[0])
                if isinstance(outer, library().layer_choice):
                    continue  # in a cell it is made for its input
                module = space.get_submodule(path)
                named = {part: places[id(theirs)] for part, theirs in parts.items()}
                if sized := list(_sized(module, named, differ)):
                    _SIZED_BY[module] = (*_SIZED_BY.get(module, ()), cell)
                    for each in (module, *sized):
                        call_open(each)


def _sized(
    module: nn.Module, parts: Mapping[str, str], differ: Sequence[str]
) -> Iterator[nn.Module]:
    """What of a module has tensors of other shapes; ``parts`` are at these places in NNI's."""
    for part, place in parts.items():
        for inner, each in module.get_submodule(part).named_modules():
            prefix = f"{place}.{inner}." if inner else f"{place}."
            if any(name.startswith(prefix) for name in differ):
                yield each


def _shapes(model: nn.Module) -> dict[str, list[int]]:
    return {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
