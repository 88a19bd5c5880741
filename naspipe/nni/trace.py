"""From a model space's forward to a torch.fx graph in which every decision is one node.

Layer and input choices stay calls of their modules. A ``Repeat`` is unrolled to its greatest
depth; what an architecture may leave out is marked with the :class:`Region` that it belongs to,
and a call of :func:`either` says what stands in its place.

A cell may return only the nodes which no other node of its reads (``loose_end``). In the space such
a cell returns all nodes. Which are open follows from what its nodes read, and so does the number of
channels that the next layers are made for: each has a candidate per number.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import combinations
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.fx as fx
from torch import nn

from naspipe.config.errors import ConfigError
from naspipe.config.user_code import users_code
from naspipe.machine.determinism import kept_draws
from naspipe.nni.library import Sample, call_open, labels_of, library, structure_in

# Cells with loose ends


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


# The graph


@dataclass(frozen=True, eq=False)
class Region:
    """One repetition of a ``Repeat`` that only deeper architectures have."""

    depth: Any
    """NNI's expression of the depth."""
    index: int
    source: fx.Node
    """A tensor that goes in; it stands for whatever is computed inside, where nothing is."""

    @property
    def labels(self) -> tuple[str, ...]:
        """What the depth depends on."""
        return labels_of(self.depth)

    def is_active(self, sample: Sample) -> bool:
        """Whether an architecture has this repetition."""
        return bool(self.depth.freeze(sample) > self.index)


def either(inside: Any, outside: Any) -> Any:
    """Marks the end of a region: what comes out of it, or what went in.

    Raises:
        RuntimeError: always; candidates are made without it.
    """
    raise RuntimeError("a mark of the tracer was called")


def arguments(node: fx.Node, sample: Sample) -> tuple[Any, Any]:
    """What an architecture calls a node with: of a cell's nodes those that are open."""
    if "cell" not in node.meta:
        return node.args, node.kwargs
    cell = node.meta["cell"]
    ends = open_ends(cell, sample)
    listed: Any = node.args[0]
    kept = [each for each, at in zip(listed, cell.output_node_indices, strict=True) if at in ends]
    return (kept, *node.args[1:]), node.kwargs


@dataclass(frozen=True, eq=False)
class Entered:
    """A module whose forward was followed from here on."""

    module: nn.Module
    regions: tuple[Region, ...]


@dataclass(frozen=True, eq=False)
class Traced:
    """A model space and its forward; ``node.meta["regions"]`` are the regions around a node."""

    space: Any
    graph: fx.Graph
    steps: tuple[fx.Node | Entered, ...]
    """Everything that is called, in order; parameters and inputs are no steps."""

    @property
    def name(self) -> str:
        """Of the space's class."""
        return type(self.space).__name__


def trace(space: Any) -> Traced:
    """What a model space computes, with every decision open.

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
    tracer = _Tracer({id(module) for module in opened_in(space).values()})
    training = space.training
    space.train()
    try:
        with traceable(name):
            graph = tracer.trace(space)
    finally:
        space.train(training)
    return Traced(space, graph, tuple(tracer.steps))


def traceable(name: str) -> AbstractContextManager[None]:
    """Whatever is raised inside is the forward's fault."""
    return users_code(f"space {name}: expected a forward that torch.fx can trace, found")


def opened_in(space: nn.Module) -> dict[str, nn.Module]:
    """By path, the modules whose forward is followed: those around a decision."""
    around = {id(part) for _, module in structure_in(space) for part in _around(module)}
    known = library()
    return {
        path: module
        for path, module in space.named_modules()
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
        """Choices and everything without a decision in it are one node."""
        return id(m) not in self._opened

    def call_module(
        self, m: nn.Module, forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Unroll a ``Repeat``; anything else as torch.fx does."""
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
        """Note the regions around the node, its place in the order, and a cell's open ends."""
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
                region = Region(repeat.depth_choice, index, _first_node(x))
                with self._inside(region):
                    inside = block(x)
                x = self._end(region, inside, x)
        return x

    @contextmanager
    def _inside(self, region: Region) -> Iterator[None]:
        self._regions = (*self._regions, region)
        try:
            yield
        finally:
            self._regions = self._regions[:-1]

    def _end(self, region: Region, inside: Any, outside: Any) -> Any:
        if isinstance(inside, list | tuple) and isinstance(outside, list | tuple):
            pairs = zip(inside, outside, strict=True)
            return type(inside)([self._end(region, *pair) for pair in pairs])
        if inside is outside:
            return inside
        proxy = self.create_proxy("call_function", either, (inside, outside), {})
        proxy.node.meta["ends"] = region
        return proxy


def _around(module: nn.Module) -> list[nn.Module]:
    """What works on a cell's lists of tensors, which only Python can follow."""
    if not isinstance(module, library().cell):
        return []
    return [p for p in (module.preprocessor, module.postprocessor) if isinstance(p, nn.Module)]


def _first_node(x: Any) -> fx.Node:
    while isinstance(x, list | tuple):
        x = x[0]
    node: fx.Node = x.node
    return node
