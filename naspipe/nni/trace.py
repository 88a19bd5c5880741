"""From a model space's forward to a torch.fx graph in which every decision is one node.

Layer and input choices remain calls of their modules. A ``Repeat`` is unrolled to its greatest
depth; what an architecture may omit is marked with its :class:`Region`, and a call of
:func:`either` defines its replacement.

A cell may return only those nodes that no other node of the cell reads (``loose_end``). In the
space such a cell returns all nodes. Which nodes are open depends on the inputs of its nodes, and so
does the number of channels for which the next layers are made: each has a candidate per number.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import combinations
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.fx as fx
from torch import nn

from naspipe.config.errors import ConfigError
from naspipe.config.user_code import users_code
from naspipe.nni.library import Sample, labels_of, library, structure_in

# Cells with loose ends


Ends = tuple[int, ...]
"""The open nodes of a cell, in the cell's numbering."""

SIZED_BY: WeakKeyDictionary[nn.Module, tuple[Any, ...]] = WeakKeyDictionary()
"""Maps each module made for the open ends of cells to these cells, one for each label."""


def is_loose(module: nn.Module) -> bool:
    """Return True if a module is a cell of this kind, with inputs to choose."""
    return isinstance(module, library().cell) and module.merge_op == "loose_end"


def cells_that_size(module: nn.Module) -> tuple[Any, ...]:
    """Return the cells for whose number of open ends a module is made."""
    return SIZED_BY.get(module, ())


def input_labels(cell: Any) -> tuple[str, ...]:
    """Return the labels that determine the inputs of a cell's nodes."""
    return tuple(dict.fromkeys(each.label for node in cell.inputs for each in node))


def open_ends(cell: Any, sample: Sample) -> Ends:
    """Return the nodes of a cell that no other node reads, in an architecture."""
    used = {node for label in input_labels(cell) for node in sample[label]}
    return tuple(node for node in cell.output_node_indices if node not in used)


def variants(cell: Any, *, by_number: bool) -> Iterator[Sample]:
    """Yield node inputs once for every set of open ends, or for every number of open ends."""
    *others, last = cell.output_node_indices
    for count in range(len(others) + 1):
        for some in combinations(others, count):
            yield _reading(cell, (*some, last))
            if by_number:
                break


def _reading(cell: Any, ends: Ends) -> Sample:
    """Return inputs that leave exactly these nodes open.

    Every other node is read once, by the last node that has an input left: a node has all slots of
    an earlier one except its own, so there is always one.
    """
    sample: Sample = {}
    slots: list[str] = []
    for node, inputs in zip(cell.output_node_indices[::-1], cell.inputs[::-1], strict=True):
        if node not in ends:
            sample[slots.pop()] = [node]
        slots += [each.label for each in inputs if each.label not in slots]
    return {label: [0] for label in slots} | sample


# The graph


@dataclass(frozen=True, eq=False)
class Region:
    """One repetition of a ``Repeat`` that only deeper architectures have."""

    depth: Any
    """NNI's expression of the depth."""
    index: int
    source: fx.Node
    """An input tensor; it replaces everything that is computed inside if the region is inactive."""

    @property
    def labels(self) -> tuple[str, ...]:
        return labels_of(self.depth)

    def is_active(self, sample: Sample) -> bool:
        """Return True if an architecture has this repetition."""
        return bool(self.depth.freeze(sample) > self.index)


def either(inside: Any, outside: Any) -> Any:
    """Mark the end of a region: its output, or its input if inactive. It is never called."""
    raise RuntimeError("a mark of the tracer was called")


def arguments(node: fx.Node, sample: Sample) -> tuple[Any, Any]:
    """Return the arguments of a node in an architecture: only the open nodes of a cell."""
    if "cell" not in node.meta:
        return node.args, node.kwargs
    cell = node.meta["cell"]
    ends = open_ends(cell, sample)
    listed: Any = node.args[0]
    kept = [each for each, at in zip(listed, cell.output_node_indices, strict=True) if at in ends]
    return (kept, *node.args[1:]), node.kwargs


def attribute(root: nn.Module, path: str) -> Any:
    """Return an attribute by path without ``getattr``, which fails during a trace."""
    path, _, name = path.rpartition(".")
    owner = root.get_submodule(path)
    for kept in (owner._parameters, owner._buffers, owner.__dict__):
        if name in kept:
            return kept[name]
    return getattr(type(owner), name)


@dataclass(frozen=True, eq=False)
class Entered:
    """A module whose forward is followed from this step on."""

    module: nn.Module
    regions: tuple[Region, ...]


@dataclass(frozen=True, eq=False)
class Traced:
    """A model space and its forward; ``node.meta["regions"]`` are the regions around a node."""

    space: Any
    graph: fx.Graph
    steps: tuple[fx.Node | Entered, ...]
    """Everything that is called, in order; parameters and inputs are not steps."""

    @property
    def name(self) -> str:
        return type(self.space).__name__


def trace(space: Any) -> Traced:
    """Trace the forward of a model space, with every decision open.

    Raises:
        ConfigError: for a forward that cannot be traced, with the reason and the place.
    """
    name = type(space).__name__
    for parameter in list(inspect.signature(type(space).forward).parameters.values())[1:]:
        if parameter.default is not inspect.Parameter.empty or parameter.kind not in (
            inspect.Parameter.POSITIONAL_ONLY,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
        ):
            raise ConfigError(
                f"space {name}: expected a forward that takes tensors alone, found the argument "
                f"{str(parameter)!r}"
            )
    tracer = _Tracer(_opened_in(space))
    training = space.training
    space.train()
    try:
        with traceable(name):
            graph = tracer.trace(space)
    finally:
        space.train(training)
    return Traced(space, graph, tuple(tracer.steps))


def traceable(name: str) -> AbstractContextManager[None]:
    """Attribute any exception inside to the user's forward."""
    return users_code(f"space {name}: expected a forward that torch.fx can trace, found")


def _opened_in(space: nn.Module) -> set[int]:
    """Return the ids of the modules whose forward is followed: those that contain a decision.

    Choices, and everything without a decision inside, are one node.
    """
    known = library()
    around = {  # modules that handle a cell's lists of tensors, which only Python can follow
        id(part)
        for _, module in structure_in(space)
        if isinstance(module, known.cell)
        for part in (module.preprocessor, module.postprocessor)
        if isinstance(part, nn.Module)
    }
    return {
        id(module)
        for module in space.modules()
        if id(module) in around
        or (
            not isinstance(module, (known.layer_choice, known.input_choice))
            and any(True for _ in structure_in(module))
        )
    }


class _Tracer(fx.Tracer):
    def __init__(self, opened: set[int]) -> None:
        super().__init__()
        self.steps: list[fx.Node | Entered] = []
        self._regions: tuple[Region, ...] = ()
        self._opened = opened
        self._entered: list[nn.Module] = []

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return id(m) not in self._opened

    def call_module(
        self, m: nn.Module, forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Unroll a ``Repeat``; treat anything else as torch.fx does."""
        if isinstance(m, library().repeat) and id(m) in self._opened:
            return self._unroll(m, *args, **kwargs)
        if id(m) in self._opened:
            self.steps.append(Entered(m, self._regions))
        self._entered.append(m)
        try:
            return super().call_module(m, forward, args, kwargs)
        finally:
            self._entered.pop()

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        node = super().create_node(*args, **kwargs)
        node.meta["regions"] = self._regions
        if node.target is torch.cat and self._entered and is_loose(self._entered[-1]):
            node.meta["cell"] = self._entered[-1]
        if node.op.startswith("call_") and node.target is not either:
            self.steps.append(node)
        return node

    def _unroll(self, repeat: Any, x: Any) -> Any:
        if type(repeat).forward is not library().repeat.forward:
            raise ConfigError(
                f"{self.path_of_module(repeat)}: {type(repeat).__name__} has a forward of its own, "
                f"which cannot be unrolled; use Repeat's"
            )
        for index, block in enumerate(repeat.blocks):
            if index < repeat.min_depth:
                x = block(x)
            else:
                first = x
                while isinstance(first, list | tuple):
                    first = first[0]
                region = Region(repeat.depth_choice, index, first.node)
                outer, self._regions = self._regions, (*self._regions, region)
                try:
                    inside = block(x)
                finally:
                    self._regions = outer
                x = self._end(region, inside, x)
        return x

    def _end(self, region: Region, inside: Any, outside: Any) -> Any:
        if isinstance(inside, list | tuple) and isinstance(outside, list | tuple):
            pairs = zip(inside, outside, strict=True)
            return type(inside)([self._end(region, *pair) for pair in pairs])
        if inside is outside:
            return inside
        proxy = self.create_proxy("call_function", either, (inside, outside), {})
        proxy.node.meta["ends"] = region
        return proxy
