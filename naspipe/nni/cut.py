"""A traced space cut into the blocks of a chain, with the tensors that pass between them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import torch.fx as fx
from torch import nn

from naspipe.config.errors import ConfigError
from naspipe.nni.library import labels_in, library
from naspipe.nni.trace import Region, attribute, cells_that_size

_SCALAR_METHODS = {"size", "dim", "numel", "ndimension"}
_SCALAR_ATTRIBUTES = {"shape", "ndim", "dtype", "device"}


class Kind(Enum):
    """What decides which layer of a block an architecture uses."""

    NONE = "nothing yet"
    FIXED = "nothing: every architecture has it"
    VALUES = "values that its modules are made with"
    INPUTS = "an InputChoice"
    ENDS = "which nodes of a Cell no other node reads"
    LAYERS = "a LayerChoice"


@dataclass(eq=False)
class Draft:
    """One block: its nodes in the order of the forward, and its inputs and outputs."""

    regions: tuple[Region, ...]
    kind: Kind = Kind.NONE
    labels: tuple[str, ...] = ()
    """Labels from whose values its modules are constructed."""
    cells: tuple[Any, ...] = ()
    """Cells whose open ends it returns, or for whose number of open ends its modules are made."""
    nodes: list[fx.Node] = field(default_factory=list)
    anchors: list[fx.Node] = field(default_factory=list)
    """Those nodes that have parameters or are decisions."""
    modules: list[Any] = field(default_factory=list)
    """Modules of the space that the anchors call."""
    inputs: tuple[fx.Node, ...] = ()
    outputs: tuple[fx.Node, ...] = ()


def cut(space: nn.Module, graph: fx.Graph) -> list[Draft]:
    """Cut after every decision; what is computed between two decisions belongs to the first.

    Raises:
        ConfigError: if a parameter is used in two blocks, or if a value that is not a tensor passes
            between blocks.
    """
    drafts: list[Draft] = []
    for node in graph.nodes:
        if node.op in ("placeholder", "output") or _is_made_where_used(node):
            continue
        kind, labels, cells = _kind(space, node)
        regions = node.meta["regions"]
        current = drafts[-1] if drafts else None
        if kind is Kind.NONE:
            if current is None or regions != current.regions[: len(regions)]:
                current = Draft(regions)
                drafts.append(current)
        else:
            if current is None or not _joins(space, current, node, (kind, labels, cells)):
                current = Draft(regions)
                drafts.append(current)
            current.kind, current.labels, current.cells = kind, labels, cells
            current.anchors.append(node)
            if node.op == "call_module":
                current.modules.append(space.get_submodule(str(node.target)))
        current.nodes.append(node)
    _check_owners(space, drafts)
    _connect(graph, drafts)
    return drafts


def _is_made_where_used(node: fx.Node) -> bool:
    """Return True if each block that needs a node repeats it: parameters, and sizes of tensors."""
    if node.op == "get_attr":
        return True
    inputs = node.all_input_nodes
    if node.op == "call_method":
        return node.target in _SCALAR_METHODS
    if node.op != "call_function" or not inputs:
        return False
    if node.target is getattr:
        return node.args[1] in _SCALAR_ATTRIBUTES
    is_arithmetic = getattr(node.target, "__module__", "") in ("_operator", "builtins", "math")
    return is_arithmetic and all(n.op != "get_attr" and _is_made_where_used(n) for n in inputs)


def _tensors_read(node: fx.Node) -> Iterator[fx.Node]:
    """Yield the nodes that a node reads, looking through nodes that are repeated where used."""
    for read in node.all_input_nodes:
        if _is_made_where_used(read):
            yield from _tensors_read(read)
        else:
            yield read


def _attributes_read(node: fx.Node) -> Iterator[str]:
    for read in node.all_input_nodes:
        if read.op == "get_attr":
            yield str(read.target)
        elif _is_made_where_used(read):
            yield from _attributes_read(read)


def fused_cell(space: nn.Module, node: fx.Node) -> tuple[Any, int, int] | None:
    """Return the cell that creates a layer choice's candidates for each input: cell, step, op."""
    known = library()
    path, _, op = str(node.target).rpartition(".")
    path, _, step = path.rpartition(".")
    path, _, ops = path.rpartition(".")
    if ops != "ops" or not (op.isdigit() and step.isdigit()):
        return None
    cell: Any = space.get_submodule(path)
    if not isinstance(cell, known.cell) or cell.op_candidates_factory is None:
        return None
    return cell, int(step), int(op)


_Made = tuple[Kind, tuple[str, ...], tuple[Any, ...]]
"""A kind, labels, and cells."""


def _kind(space: nn.Module, node: fx.Node) -> _Made:
    known = library()
    if "cell" in node.meta:
        return Kind.ENDS, (), (node.meta["cell"],)
    if node.op != "call_module":
        return (Kind.FIXED if any(_attributes_read(node)) else Kind.NONE), (), ()
    module = space.get_submodule(str(node.target))
    if isinstance(module, known.layer_choice):
        return Kind.LAYERS, (), ()
    if isinstance(module, known.input_choice):
        return Kind.INPUTS, (), ()
    labels, cells = labels_in(module), cells_that_size(module)
    if labels or cells:
        return Kind.VALUES, labels, cells
    has_state = any(True for _ in module.parameters()) or any(True for _ in module.buffers())
    return (Kind.FIXED if has_state else Kind.NONE), (), ()


def _joins(space: nn.Module, draft: Draft, node: fx.Node, made: _Made) -> bool:
    """Return True if a node with parameters, or a decision, belongs to the current block."""
    kind = made[0]
    if node.meta["regions"] != draft.regions:
        return False
    if draft.kind is Kind.NONE:
        return True
    if kind is Kind.LAYERS and draft.kind is Kind.INPUTS:
        return node.args[:1] == (draft.nodes[-1],) and fused_cell(space, node) is not None
    alike = made == (draft.kind, draft.labels, draft.cells)
    return alike and kind in (Kind.FIXED, Kind.VALUES)


def _check_owners(space: nn.Module, drafts: Iterable[Draft]) -> None:
    """Raise if two blocks use the same parameter."""
    owners: dict[int, Draft] = {}
    for draft in drafts:
        for node in draft.nodes:
            read = {name: attribute(space, name) for name in _attributes_read(node)}
            if node.op == "call_module":
                module = space.get_submodule(str(node.target))
                for name, parameter in module.named_parameters():
                    read[f"{node.target}.{name}"] = parameter
            for name, parameter in read.items():
                if not isinstance(parameter, nn.Parameter):
                    continue
                if owners.setdefault(id(parameter), draft) is not draft:
                    raise ConfigError(
                        f"{type(space).__name__}.{name} is used in two places of the forward with "
                        f"a choice between them: tied parameters are not supported; use a module "
                        f"of its own in each"
                    )


def _connect(graph: fx.Graph, drafts: list[Draft]) -> None:
    """Determine which tensors pass each cut: computed before it, and read after it."""
    made = {node: 0 for node in graph.nodes if node.op == "placeholder"}
    last_read: dict[fx.Node, int] = {}
    for number, draft in enumerate(drafts):
        for node in draft.nodes:
            made[node] = number
            for read in _tensors_read(node):
                last_read[read] = number
        for region in draft.regions:
            last_read[region.source] = max(number, last_read.get(region.source, 0))
    results = _outputs_of(graph)
    for result in results:
        last_read[result] = len(drafts)
    inputs = tuple(node for node in graph.nodes if node.op == "placeholder")
    for number, draft in enumerate(drafts):
        draft.inputs = inputs
        if draft is drafts[-1]:
            draft.outputs = results
            break
        draft.outputs = inputs = tuple(
            node for node, at in made.items() if at <= number < last_read.get(node, -1)
        )


def _outputs_of(graph: fx.Graph) -> tuple[fx.Node, ...]:
    """Return the nodes that the forward returns; raise unless they are tensors."""
    returned = next(node for node in graph.nodes if node.op == "output").args[0]
    listed = returned if isinstance(returned, list | tuple) else (returned,)
    results = tuple(node for node in listed if isinstance(node, fx.Node))
    if len(results) != len(listed) or any(map(_is_made_where_used, results)) or not results:
        raise ConfigError(
            f"expected a forward that returns a tensor or a tuple of tensors, found {returned}"
        )
    return results
