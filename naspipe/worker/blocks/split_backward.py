"""The backward of a block in two parts: what is handed on first, weights' gradients later.

The gradients of a block's inputs (B) go on to the block before it. Nobody but the layer's own
update needs the gradients of its weights (W), so those can be computed when the update is due
(Qi et al., "Zero Bubble Pipeline Parallelism", 2023). Both parts run the kernels of the whole
backward on the same tensors, so the bits are the same:

- A weight's gradient is computed by the one node through which the weight joins the way from the
  block's outputs to its inputs: its join. B leaves that output of the node out, and a hook keeps
  the gradient that arrives there. W runs the node again for the weight alone, by its kernel
  (:mod:`naspipe.worker.blocks.weight_kernels`) or else by a call of the engine.
- Only kernels that can compute the two gradients apart are joins (matrix products and
  convolutions). What is left in B: norms, biases, parameters that join at two places or more.
- A block none of whose inputs wants a gradient has nothing to hand on: all of it is W.

The first backward of each candidate runs both whole and split, and the candidate stays whole if one
bit differs. Later passes run split as long as their graph is the one that was proved. A candidate
whose forward puts hooks on tensors is whole from that pass on: hooks would be called again.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge, Node

from naspipe.config.ids import LayerId, StreamId
from naspipe.config.user_code import add_call
from naspipe.machine.determinism import seed_draws
from naspipe.machine.out_of_memory import raising_shortages
from naspipe.machine.staging import same_bits
from naspipe.worker.blocks.guards import watch_hooks
from naspipe.worker.blocks.specs import Gradient, Root, backward_from
from naspipe.worker.blocks.weight_kernels import Kernel, in_order_of_inputs, kernel_of
from naspipe.worker.layers.bound_layer import BoundLayer, Gradients, apart

CONVOLUTION = "ConvolutionBackward0"
JOINS = (CONVOLUTION, "AddmmBackward0", "MmBackward0", "BmmBackward0", "LinearBackward0")
"""Nodes that compute the gradient of a weight and that of their input by kernels of their own.
A convolution computes those of its weight and its bias by one."""


class Graph(NamedTuple):
    """What autograd recorded of one block in one pass."""

    roots: Sequence[tuple[torch.Tensor, torch.Tensor]]
    """Outputs, with their gradients."""
    inputs: Sequence[torch.Tensor]
    """The leaves that the block was computed from."""
    arrived: list[Gradient]
    """What the backward brings to each input; hooks of the segment fill it in."""
    layer: BoundLayer
    seed: int
    """Of random draws in the backward."""
    told: str
    """What is computed, for messages."""
    hooks: str = ""
    """What the forward has put on the graph that must be called once; empty if nothing."""


class Owed:
    """The gradients of a layer's weights that one pass has still to compute.

    Args:
        graph: that they are of.
        pieces: calls of the engine or of kernels. The engine would count what is behind two joins
            twice, so each join has a call of its own.
        is_whole: it is all of the backward.
    """

    def __init__(self, graph: Graph, pieces: Sequence[_Piece], is_whole: bool) -> None:
        self._graph, self._layer = graph, graph.layer
        self._pieces, self._is_whole = list(pieces), is_whole
        self._found: Gradients = {}

    def compute(self) -> Gradients:
        """The gradients by the parameters' names; can be called again when memory was short.

        Raises:
            torch.OutOfMemoryError: when it was.
        """
        try:
            with raising_shortages(), self._layer.in_place():
                while self._pieces:
                    piece = self._pieces[-1]
                    found = piece.by_kernel()
                    if found is None:
                        self._compute(piece.roots, [*piece.parameters.values()])
                        found = self._layer.take_gradients()
                    self._found |= found
                    self._pieces.pop()
        except Exception as error:
            self._layer.take_gradients()
            if not isinstance(error, torch.OutOfMemoryError):
                add_call(error, lambda: self._graph.told)
            raise
        return self._found

    def _compute(self, roots: Sequence[Root], parameters: Sequence[torch.Tensor]) -> None:
        if self._is_whole:
            seed_draws(self._graph.seed)
        # The graph is kept for a second try.
        backward_from(roots, parameters, keeps_graph=True)
        if self._is_whole:
            self._layer.part_gradients(gradient for _, gradient in roots)

    def in_order(self, gradients: Gradients) -> Gradients:
        """Gradients of the layer, in the order in which a whole backward leaves them."""
        names = self._layer.parameters
        return {name: gradients[name] for name in names if name in gradients}

    @property
    def pieces(self) -> Sequence[_Piece]:
        """Those that are not computed yet."""
        return tuple(self._pieces)

    @property
    def tensors(self) -> Iterator[torch.Tensor]:
        """Gradients that are there; what autograd saved is not among them."""
        yield from self._found.values()
        for piece in self._pieces:
            yield from (gradient for _, gradient in piece.roots)


class _Join(NamedTuple):
    """A node, and what it computes beside the gradient that goes on."""

    node: Node
    parameters: Mapping[str, torch.Tensor]
    """In the order of the node's inputs."""
    kernel: Kernel | None


class _Piece(NamedTuple):
    """One call of the engine, or of a kernel."""

    roots: Sequence[Root]
    parameters: Mapping[str, torch.Tensor]
    """Whose gradients are computed."""
    join: _Join | None = None
    """The join at which the only root begins; None where the piece begins at the outputs."""

    def by_kernel(self) -> Gradients | None:
        """The gradients, as the kernel of the join computes them; None if the engine has to.

        The engine gives a gradient the strides of its parameter, which a kernel may not do for an
        input with other strides than those of the first pass.
        """
        if self.join is None or self.join.kernel is None:
            return None
        ((_, gradient),) = self.roots
        with torch.no_grad():
            found = self.join.kernel(self.join.node, gradient)
        own = self.parameters.values()
        if found is None or any(a.stride() != b.stride() for a, b in zip(found, own, strict=True)):
            return None
        return dict(zip(self.parameters, found, strict=True))


_Link = tuple[type, int, int]
"""What is behind a node in one place: its kind, its number, and which of its outputs leads there.
The number is -1 where there is nothing."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The graph of one candidate, node by node from the outputs on, and its joins."""

    kinds: tuple[type, ...]
    """Of the nodes of the outputs."""
    links: tuple[tuple[int, tuple[_Link, ...]], ...]
    """What is behind the node with this number. One that was not seen has the next number."""
    leaves: tuple[tuple[int, str | int], ...]
    """Nodes of leaves: each is that of a parameter, or of the input with this number."""
    joins: tuple[tuple[int, tuple[str, ...], Kernel | None], ...]
    """Each by its number, with the parameters that join there in the order of its inputs, and the
    kernel that computes their gradients, if it is known."""
    early: tuple[str, ...]
    """Parameters whose gradients B computes."""

    def find(self, graph: Graph) -> list[_Join] | None:
        """The joins of a pass; None where its graph is another one.

        All of the graph is compared. In another one, a weight might join at a second place.
        """
        nodes: list[Any] = [output.grad_fn for output, _ in graph.roots]
        if tuple(map(type, nodes)) != self.kinds:
            return None
        for number, links in self.links:
            behind = nodes[number].next_functions
            if len(behind) != len(links):
                return None
            for (node, output), (kind, each, its_output) in zip(behind, links, strict=True):
                if type(node) is not kind or output != its_output:
                    return None
                if each == len(nodes):
                    nodes.append(node)
                elif each >= 0 and nodes[each] is not node:
                    return None
        if len(set(nodes)) != len(nodes):
            return None
        parameters, inputs = graph.layer.parameters, graph.inputs
        for number, name in self.leaves:
            leaf = parameters[name] if isinstance(name, str) else inputs[name]
            if nodes[number].variable is not leaf:
                return None
        return [
            _Join(nodes[each], {name: parameters[name] for name in names}, kernel)
            for each, names, kernel in self.joins
        ]

    def with_kernels(self, kernels: Sequence[Kernel | None]) -> Plan:
        """The same with these kernels of the joins."""
        pairs = zip(self.joins, kernels, strict=True)
        return replace(self, joins=tuple((*each[:2], kernel) for each, kernel in pairs))


class SplitBackward:
    """The backward of one candidate: split, once it was seen that this leaves its bits."""

    def __init__(self) -> None:
        watch_hooks()
        self.why_whole = ""
        """Why the candidate's backward stays whole; empty where it does not, or is not known."""
        self._plan: Plan | None = None

    @property
    def is_proven(self) -> bool:
        """Whether the bits of a split backward were seen to be those of a whole one."""
        return self._plan is not None and not self.why_whole

    def run(self, graph: Graph) -> Owed | None:
        """Compute B; returns W, or None where the parameters have all their gradients."""
        if not any(leaf.requires_grad for leaf in graph.inputs):
            # One call of the engine runs every node once, so hooks are called once and checkpoints
            # are recomputed once. The layer's next reader waits for it, as for a whole backward.
            named = graph.layer.parameters.items()
            trained = {name: each for name, each in named if each.requires_grad}
            return Owed(graph, [_Piece(graph.roots, trained)], is_whole=True)
        self.why_whole = self.why_whole or graph.hooks or _parameter_hooks(graph.layer)
        if not self.why_whole and self._plan is None and self._prove(graph):
            return None
        plan = None if self.why_whole else self._plan
        joins = None if plan is None else plan.find(graph)
        if plan is None or joins is None:
            backward_from(graph.roots)
            return None
        return _split(graph, joins, plan.early)

    def _prove(self, graph: Graph) -> bool:
        """See whether the bits of a split backward are those of a whole one.

        Returns whether the gradients are there. They are those of the whole one.
        """
        plan = plan_of(graph)
        if isinstance(plan, str):
            self.why_whole = plan
            return False
        joins = plan.find(graph)
        if joins is None:
            self.why_whole = "its graph is not found again"
            return False
        buffers = _buffer_copies(graph.layer)
        backward_from(graph.roots, keeps_graph=True)
        self.why_whole = _changed_buffer(graph.layer, buffers)
        if self.why_whole:
            return True
        whole, arrived = graph.layer.take_gradients(), list(graph.arrived)
        graph.arrived[:] = [None] * len(arrived)
        seed_draws(graph.seed)
        owed = _split(graph, [join._replace(kernel=None) for join in joins], plan.early)
        pieces = {piece.join.node: piece for piece in owed.pieces if piece.join is not None}
        split = {**graph.layer.take_gradients(), **owed.compute()}
        self.why_whole = _difference(whole, split)
        if not all(map(_is_alike, arrived, graph.arrived)):
            self.why_whole = "the gradient of an input has other bits"
        self._plan = plan
        if not self.why_whole:
            with graph.layer.in_place():
                kernels = [_known(join, pieces.get(join.node), whole) for join in joins]
            self._plan = plan.with_kernels(kernels)
        graph.arrived[:] = arrived
        for name, gradient in whole.items():
            graph.layer.parameters[name].grad = gradient
        return True


def _split(graph: Graph, joins: Sequence[_Join], early: Sequence[str]) -> Owed:
    """Compute B; returns W."""
    kept: list[Gradient] = [None] * len(joins)
    hooks = [
        join.node.register_prehook(partial(_keep, kept, number))
        for number, join in enumerate(joins)
    ]
    wanted = [leaf for leaf in graph.inputs if leaf.requires_grad]
    wanted += [graph.layer.parameters[name] for name in early]
    try:
        backward_from(graph.roots, wanted, keeps_graph=True)
    finally:
        for hook in hooks:
            hook.remove()
    # Backwards of earlier blocks may change what is handed on, before W is computed.
    kept = apart(kept, graph.arrived)
    pieces = [
        _Piece([(GradientEdge(join.node, 0), gradient)], join.parameters, join)
        for join, gradient in zip(joins, kept, strict=True)
        if gradient is not None
    ]
    return Owed(graph, pieces, is_whole=False)


def _keep(kept: list[Gradient], number: int, gradients: Sequence[Gradient]) -> None:
    (kept[number],) = gradients


def _known(join: _Join, piece: _Piece | None, whole: Gradients) -> Kernel | None:
    """The kernel of a join, if it leaves the bits and strides that the engine left."""
    found = None if piece is None else piece._replace(join=join).by_kernel()
    is_alike = found is not None and all(
        _is_alike(each, whole.get(name)) for name, each in found.items()
    )
    return join.kernel if is_alike else None


def _difference(whole: Gradients, split: Gradients) -> str:
    """Which gradient has other bits; empty if none has."""
    if whole.keys() != split.keys():
        return "other parameters have a gradient"
    differing = (name for name, value in whole.items() if not _is_alike(value, split[name]))
    name = next(differing, None)
    return "" if name is None else f"the gradient of {name} has other bits"


def _is_alike(one: Gradient, other: Gradient) -> bool:
    if one is None or other is None:
        return one is other
    if one.is_sparse or other.is_sparse:
        return False
    return one.stride() == other.stride() and same_bits(one, other)


def plan_of(graph: Graph) -> Plan | str:
    """How the candidate's backward can be split, or why it cannot."""
    roots: list[Any] = [output.grad_fn for output, _ in graph.roots]
    if None in roots:
        return "an output of it is a parameter"
    if len(set(roots)) != len(roots):
        return "two outputs of it are of one operation"
    nodes, parents = _walked(roots)
    if any(isinstance(node, BackwardCFunction) for node in nodes):
        return "it has an autograd function of its own, or a backward hook"
    names: dict[int, str | int] = {id(each): n for n, each in enumerate(graph.inputs)}
    names |= {id(each): name for name, each in graph.layer.parameters.items()}
    leaves: dict[Node, str | int] = {}
    for node in nodes:
        variable = getattr(node, "variable", None)
        if variable is not None:
            if id(variable) not in names:
                return "it uses a tensor of its own that wants a gradient"
            leaves[node] = names[id(variable)]
    joins = _joins(parents, leaves)
    if not joins:
        return "no weight of it can be left for later"
    numbers: dict[Any, int] = {node: number for number, node in enumerate(nodes)}
    joining: dict[Node, list[Node]] = {}
    for node, join in joins.items():
        joining.setdefault(join, []).append(node)
    joining = {join: in_order_of_inputs(join, own) for join, own in joining.items()}
    return Plan(
        kinds=tuple(map(type, roots)),
        links=tuple(
            (number, tuple((type(behind), numbers.get(behind, -1), n) for behind, n in links))
            for node, number in numbers.items()
            if (links := node.next_functions)
        ),
        leaves=tuple((numbers[node], name) for node, name in leaves.items()),
        joins=tuple(
            (numbers[join], tuple(str(leaves[node]) for node in own), kernel_of(join, own))
            for join, own in joining.items()
        ),
        early=tuple(n for node, n in leaves.items() if isinstance(n, str) and node not in joins),
    )


def _parameter_hooks(layer: BoundLayer) -> str:
    has_hooks = any(map(_has_hooks, layer.parameters.values()))
    return "a parameter has a hook" if has_hooks else ""


def _has_hooks(parameter: torch.Tensor) -> bool:
    late = getattr(parameter, "_post_accumulate_grad_hooks", None)
    return bool(parameter._backward_hooks or late)


def _buffer_copies(layer: BoundLayer) -> dict[str, torch.Tensor]:
    named = layer.module.named_buffers(remove_duplicate=False)
    return {name: buffer.clone() for name, buffer in named}


def _changed_buffer(layer: BoundLayer, copies: Mapping[str, torch.Tensor]) -> str:
    """Say which buffer a backward has changed, as a hook on a node may; empty if none."""
    buffers = dict(layer.module.named_buffers(remove_duplicate=False))
    names = (name for name, copy in copies.items() if not same_bits(buffers.get(name), copy))
    name = next(names, None) or next(iter(buffers.keys() - copies.keys()), None)
    return "" if name is None else f"its backward changes the buffer {name}"


def _walked(roots: Sequence[Node]) -> tuple[list[Node], dict[Node, list[Node]]]:
    """All nodes behind the roots, and of each those that it is right behind, once for each way."""
    parents: dict[Node, list[Node]] = {root: [] for root in roots}
    found = list(parents)
    for node in found:
        for behind, _ in node.next_functions:
            if behind is None:
                continue
            if behind not in parents:
                parents[behind] = []
                found.append(behind)
            parents[behind].append(node)
    return found, parents


def _joins(
    parents: Mapping[Node, list[Node]], leaves: Mapping[Node, str | int]
) -> dict[Node, Node]:
    """The joins of the parameters that can be left for later, by the parameters' nodes."""
    late = {node for node, name in leaves.items() if isinstance(name, str)}
    while True:
        on_way = _above({node for node in leaves if node not in late}, parents)
        ways = {node: way for node in late if (way := _way(node, parents, on_way)) is not None}
        weights = {join for join, place in ways.values() if place == 1}
        joins = {
            node: join
            for node, (join, _) in ways.items()
            # A convolution computes its bias with its weight. The bias of a matrix product is a
            # small sum of its own.
            if (join in weights if join.name() == CONVOLUTION else _dim(node) > 1)
        }
        if len(joins) == len(late):
            return joins
        late = set(joins)


def _dim(node: Node) -> int:
    variable: torch.Tensor = node.variable  # type: ignore[attr-defined]
    return variable.dim()


def _way(
    node: Node, parents: Mapping[Node, list[Node]], on_way: set[Node]
) -> tuple[Node, int] | None:
    """The join of a parameter's node, and in which place it joins; None where there are more."""
    while len(above := parents[node]) == 1:
        (parent,) = above
        if parent in on_way:
            place = [behind for behind, _ in parent.next_functions].index(node)
            return (parent, place) if parent.name() in JOINS else None
        node = parent
    return None


def _above(wanted: set[Node], parents: Mapping[Node, list[Node]]) -> set[Node]:
    """Nodes from which any of these is reached."""
    found, open_nodes = set(wanted), list(wanted)
    while open_nodes:
        for parent in parents[open_nodes.pop()]:
            if parent not in found:
                found.add(parent)
                open_nodes.append(parent)
    return found


class Splits:
    """Which candidates' backwards are split on a stage, and what was found of each.

    Args:
        chosen: of each stream, the blocks with their options.
        kinds: of each stream, for each block the first one with the same candidates.
    """

    def __init__(
        self, chosen: Sequence[Container[tuple[int, int]]], kinds: Sequence[Sequence[int]]
    ) -> None:
        self._chosen, self._kinds = tuple(chosen), tuple(kinds)
        if any(self._chosen):
            watch_hooks()  # before the first forward
        self._known: dict[tuple[StreamId, int, int, bool], SplitBackward] = {}

    def of(self, layer: LayerId, option: int, has_end: bool) -> SplitBackward | None:
        """How an option of a layer goes backward; None for whole.

        Args:
            layer: of a block.
            option: of that block.
            has_end: whether a loss arises in the block.
        """
        stream, block = layer.stream, layer.block
        if (block, option) not in self._chosen[stream]:
            return None
        key = (stream, self._kinds[stream][block], option, has_end)
        return self._known.setdefault(key, SplitBackward())

    @property
    def whole(self) -> Iterator[tuple[StreamId, int, int, str]]:
        """Streams, blocks and options that were to be split and stay whole, and why."""
        for (stream, block, option, _), each in self._known.items():
            if each.why_whole:
                yield stream, block, option, each.why_whole
