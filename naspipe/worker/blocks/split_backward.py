"""The backward of a block in two parts: gradients of inputs first, gradients of weights later.

The gradients of a block's inputs (B) are passed to the previous block. Only the layer's own update
needs the gradients of its weights (W), so these can be computed when the update is due (Qi et al.,
"Zero Bubble Pipeline Parallelism", 2023). Both parts run the kernels of the whole backward on the
same tensors, so the results are bitwise equal:

- A weight's gradient is computed by a single node, called its join, at which the weight joins the
  path from the block's outputs to its inputs. B skips that output of the node, and a hook keeps the
  gradient that arrives at the node. W runs the node again for the weight alone, by calling either
  its kernel or the engine.
- Only nodes that can compute the two gradients separately are joins (matrix products and
  convolutions). Norms, biases, and parameters that join at several nodes stay in B.
- If no input of a block requires a gradient, its entire backward is W.

The first backward of each candidate runs both whole and split, and the candidate stays whole if a
single bit differs. Later passes run split as long as their graph equals the one that was compared.
A candidate whose forward adds hooks to tensors stays whole from that pass on, because the hooks
would be called twice.

A call of the engine for a single weight takes about 30 microseconds, as much as the kernel of a
small block. Nodes expose their saved tensors, so the kernel can be called directly with them. A
kernel is known only if nothing but a transposition lies between the node and the parameter, so that
its result is the gradient for any values. Comparing the bits of the first pass alone would not
suffice, because a gradient may be zero or a factor one in that pass.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge, Node

from naspipe.config.ids import LayerId, StreamId
from naspipe.config.user_code import add_call
from naspipe.machine.determinism import seed_draws
from naspipe.machine.out_of_memory import raising_shortages
from naspipe.machine.staging import same_bits
from naspipe.worker.blocks.guards import watch_hooks
from naspipe.worker.blocks.specs import Gradient, Root, backward_from
from naspipe.worker.layers.bound_layer import BoundLayer, Gradients, apart

CONVOLUTION = "ConvolutionBackward0"
JOINS = (CONVOLUTION, "AddmmBackward0", "MmBackward0", "BmmBackward0", "LinearBackward0")
"""Nodes that compute the gradients of a weight and of their input in separate kernels.
A convolution computes those of its weight and its bias in one kernel."""


Kernel = Callable[[Any, torch.Tensor], Sequence[torch.Tensor] | None]
"""Takes a node and its incoming gradient; returns the gradients of the parameters connected to the
node, in the order of its inputs, or None if only the engine can compute them."""

_DENSE = (torch.Tensor, nn.Parameter)
_INPUT, _WEIGHT, _BIAS = range(3)


class Graph(NamedTuple):
    """The autograd graph of one block in one pass."""

    roots: Sequence[tuple[torch.Tensor, torch.Tensor]]  # outputs with their gradients
    inputs: Sequence[torch.Tensor]  # leaves
    arrived: list[Gradient]
    """The gradient of each input, filled in by hooks of the segment."""
    layer: BoundLayer
    seed: int  # for random draws in the backward
    told: str  # description of the computation for messages
    hooks: str = ""
    """Description of hooks on the graph that must be called only once; empty if none."""


class Owed:
    """The gradients of a layer's weights that one pass has deferred.

    Each piece is a call of the engine or of a kernel. In a single call the engine would count
    gradients beyond two joins twice, so each join has its own call. If ``is_whole``, the entire
    backward is deferred.
    """

    def __init__(self, graph: Graph, pieces: Sequence[_Piece], is_whole: bool) -> None:
        self._graph, self._layer = graph, graph.layer
        self._pieces, self._is_whole = list(pieces), is_whole
        self._found: Gradients = {}

    def compute(self) -> Gradients:
        """Return the gradients by name.

        Raises:
            torch.OutOfMemoryError: if memory runs out; the call can be repeated.
        """
        try:
            with raising_shortages(), self._layer.in_place():
                while self._pieces:
                    piece = self._pieces[-1]
                    found = piece.by_kernel()
                    if found is None:
                        if self._is_whole:
                            seed_draws(self._graph.seed)
                        # The graph is kept for a retry.
                        wanted = [*piece.parameters.values()]
                        backward_from(piece.roots, wanted, keeps_graph=True)
                        if self._is_whole:
                            self._layer.part_gradients(gradient for _, gradient in piece.roots)
                        found = self._layer.take_gradients()
                    self._found |= found
                    self._pieces.pop()
        except Exception as error:
            self._layer.take_gradients()
            if not isinstance(error, torch.OutOfMemoryError):
                add_call(error, lambda: self._graph.told)
            raise
        return self._found

    def in_order(self, gradients: Gradients) -> Gradients:
        """Return gradients of the layer in the order of a whole backward."""
        names = self._layer.parameters
        return {name: gradients[name] for name in names if name in gradients}

    @property
    def pieces(self) -> Sequence[_Piece]:
        return tuple(self._pieces)

    @property
    def tensors(self) -> Iterator[torch.Tensor]:
        yield from self._found.values()
        for piece in self._pieces:
            yield from (gradient for _, gradient in piece.roots)


class _Join(NamedTuple):
    """A node and the parameters whose gradients it computes."""

    node: Node
    parameters: Mapping[str, torch.Tensor]  # in the order of the node's inputs
    kernel: Kernel | None


class _Piece(NamedTuple):
    """One call of the engine or of a kernel."""

    roots: Sequence[Root]
    parameters: Mapping[str, torch.Tensor]
    join: _Join | None = None
    """The join at which the only root starts; None if the piece starts at the outputs."""

    def by_kernel(self) -> Gradients | None:
        """Return the gradients computed by the join's kernel; None if the engine is needed.

        The engine gives a gradient the strides of its parameter. A kernel may fail to do so if the
        strides of its input differ from those in the first pass.
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
"""An edge to the next node: the node's type, its number (-1 if there is no node), and the index of
its output."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The graph of one candidate, listed node by node starting at the outputs, and its joins."""

    kinds: tuple[type, ...]  # types of the output nodes
    links: tuple[tuple[int, tuple[_Link, ...]], ...]
    """The edges of each node by its number. Nodes are numbered in the order of first visit."""
    leaves: tuple[tuple[int, str | int], ...]
    """The nodes of leaves, with the name of the parameter or the number of the input."""
    joins: tuple[tuple[int, tuple[str, ...], Kernel | None], ...]
    """The number of each join, its parameters in the order of its inputs, and the kernel of their
    gradients if it is known."""
    early: tuple[str, ...]  # parameters whose gradients B computes

    def find(self, graph: Graph) -> list[_Join] | None:
        """Return the joins of a pass; None if its graph differs from the plan.

        The whole graph is compared, because a weight might join at a second node.
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


class SplitBackward:
    """The backward of one candidate, which is split after this was shown to be bitwise equal."""

    def __init__(self) -> None:
        watch_hooks()
        self.why_whole = ""
        """The reason why the backward stays whole; empty if it is split or has not been tried."""
        self._plan: Plan | None = None

    @property
    def is_proven(self) -> bool:
        return self._plan is not None and not self.why_whole

    def run(self, graph: Graph) -> Owed | None:
        """Compute B, and return W, or None if all gradients of the parameters are computed."""
        if not any(leaf.requires_grad for leaf in graph.inputs):
            # A single call of the engine runs every node once, so hooks are called once and
            # checkpoints are recomputed once. The layer's next reader waits for it, as for a whole
            # backward.
            named = graph.layer.parameters.items()
            trained = {name: each for name, each in named if each.requires_grad}
            return Owed(graph, [_Piece(graph.roots, trained)], is_whole=True)
        if not self.why_whole:
            self.why_whole = graph.hooks
        if not self.why_whole and any(
            each._backward_hooks or getattr(each, "_post_accumulate_grad_hooks", None)
            for each in graph.layer.parameters.values()
        ):
            self.why_whole = "a parameter has a hook"
        if not self.why_whole and self._plan is None and self._prove(graph):
            return None
        plan = None if self.why_whole else self._plan
        joins = None if plan is None else plan.find(graph)
        if plan is None or joins is None:
            backward_from(graph.roots)
            return None
        return _split(graph, joins, plan.early)

    def _prove(self, graph: Graph) -> bool:
        """Compare the bits of a split backward with those of a whole one.

        Return True if the gradients have been computed. They are those of the whole backward.
        """
        plan = plan_of(graph)
        if isinstance(plan, str):
            self.why_whole = plan
            return False
        joins = plan.find(graph)
        if joins is None:
            self.why_whole = "its graph is not found again"
            return False
        named = graph.layer.module.named_buffers
        copies = {name: buffer.clone() for name, buffer in named(remove_duplicate=False)}
        backward_from(graph.roots, keeps_graph=True)
        buffers = dict(named(remove_duplicate=False))
        for name in (*copies, *(buffers.keys() - copies.keys())):
            if name not in copies or not same_bits(buffers.get(name), copies[name]):
                # A hook on a node may do this.
                self.why_whole = f"its backward changes the buffer {name}"
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
            known: list[tuple[int, tuple[str, ...], Kernel | None]] = []
            with graph.layer.in_place():
                for join, (number, names, kernel) in zip(joins, plan.joins, strict=True):
                    # A kernel is used if its bits and strides equal those of the engine.
                    piece = pieces.get(join.node)
                    found = None if piece is None else piece._replace(join=join).by_kernel()
                    is_known = found is not None and all(
                        _is_alike(each, whole.get(name)) for name, each in found.items()
                    )
                    known.append((number, names, kernel if is_known else None))
            self._plan = replace(plan, joins=tuple(known))
        graph.arrived[:] = arrived
        for name, gradient in whole.items():
            graph.layer.parameters[name].grad = gradient
        return True


def _split(graph: Graph, joins: Sequence[_Join], early: Sequence[str]) -> Owed:
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
    # Backwards of earlier blocks may change the passed gradients before W is computed.
    kept = apart(kept, graph.arrived)
    pieces = [
        _Piece([(GradientEdge(join.node, 0), gradient)], join.parameters, join)
        for join, gradient in zip(joins, kept, strict=True)
        if gradient is not None
    ]
    return Owed(graph, pieces, is_whole=False)


def _keep(kept: list[Gradient], number: int, gradients: Sequence[Gradient]) -> None:
    (kept[number],) = gradients


def _difference(whole: Gradients, split: Gradients) -> str:
    if whole.keys() != split.keys():
        return "other parameters have a gradient"
    for name, value in whole.items():
        if not _is_alike(value, split[name]):
            return f"the gradient of {name} has other bits"
    return ""


def _is_alike(one: Gradient, other: Gradient) -> bool:
    if one is None or other is None:
        return one is other
    if one.is_sparse or other.is_sparse:
        return False
    return one.stride() == other.stride() and same_bits(one, other)


def plan_of(graph: Graph) -> Plan | str:
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


def _walked(roots: Sequence[Node]) -> tuple[list[Node], dict[Node, list[Node]]]:
    """Return all nodes reachable from the roots, and the parents of each, once per edge."""
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
    """Return the joins of the parameters that can be deferred, by the parameters' nodes."""
    late = {node for node, name in leaves.items() if isinstance(name, str)}
    while True:
        on_way = _above({node for node in leaves if node not in late}, parents)
        ways = {node: way for node in late if (way := _way(node, parents, on_way)) is not None}
        weights = {join for join, place in ways.values() if place == 1}
        joins = {
            node: join
            for node, (join, _) in ways.items()
            # A convolution computes the gradient of its bias with that of its weight. The bias of a
            # matrix product needs a small separate sum.
            if (join in weights if join.name() == CONVOLUTION else _variable(node).dim() > 1)
        }
        if len(joins) == len(late):
            return joins
        late = set(joins)


def _variable(node: Any) -> torch.Tensor:
    variable: torch.Tensor = node.variable
    return variable


def _way(
    node: Node, parents: Mapping[Node, list[Node]], on_way: set[Node]
) -> tuple[Node, int] | None:
    """Return the join of a parameter's node and its input there; None if there are several."""
    while len(above := parents[node]) == 1:
        (parent,) = above
        if parent in on_way:
            place = [behind for behind, _ in parent.next_functions].index(node)
            return (parent, place) if parent.name() in JOINS else None
        node = parent
    return None


def _above(wanted: set[Node], parents: Mapping[Node, list[Node]]) -> set[Node]:
    found, open_nodes = set(wanted), list(wanted)
    while open_nodes:
        for parent in parents[open_nodes.pop()]:
            if parent not in found:
                found.add(parent)
                open_nodes.append(parent)
    return found


def kernel_of(join: Node, leaves: Sequence[Node]) -> Kernel | None:
    """Return the kernel of the gradients of the parameters with these leaves, if it is known.

    The parameters join the path from outputs to inputs at the node ``join``.
    """
    behind = [node for node, _ in join.next_functions]
    if join.name() == CONVOLUTION:
        if behind[_WEIGHT] not in leaves or not {*leaves} <= {*behind[_WEIGHT:]}:
            return None
        return partial(_convolution, has_bias=behind[_BIAS] in leaves)
    if join.name() not in ("AddmmBackward0", "MmBackward0") or len(leaves) != 1:
        return None
    (leaf,), last = leaves, behind[-1]
    if last is leaf:
        return _right_factor
    if last is None or last.name() != "TBackward0":
        return None
    return _transposed_factor if last.next_functions[0][0] is leaf else None


def in_order_of_inputs(join: Node, leaves: Sequence[Node]) -> list[Node]:
    behind = [node for node, _ in join.next_functions]
    return sorted(leaves, key=lambda leaf: behind.index(leaf) if leaf in behind else 0)


def _right_factor(node: Any, gradient: torch.Tensor) -> Sequence[torch.Tensor] | None:
    left = _left_factor(node)
    return (left.t().mm(gradient),) if _are_plain(left, gradient) else None


def _transposed_factor(node: Any, gradient: torch.Tensor) -> Sequence[torch.Tensor] | None:
    left = _left_factor(node)
    return (gradient.t().mm(left),) if _are_plain(left, gradient) else None


def _left_factor(node: Any) -> Any:
    """Return the left matrix of a product; None if the product is multiplied by a number."""
    if getattr(node, "_saved_alpha", 1) != 1:
        return None
    name = "_saved_self" if node.name() == "MmBackward0" else "_saved_mat1"
    return getattr(node, name, None)


def _convolution(
    node: Any, gradient: torch.Tensor, has_bias: bool
) -> Sequence[torch.Tensor] | None:
    inputs, weight = node._saved_input, node._saved_weight
    if not _are_plain(inputs, weight, gradient):
        return None
    found = torch.ops.aten.convolution_backward.default(
        gradient, inputs, weight, node._saved_bias_sym_sizes_opt, node._saved_stride,
        node._saved_padding, node._saved_dilation, node._saved_transposed,
        node._saved_output_padding, node._saved_groups, (False, True, has_bias),
    )  # fmt: skip
    own: Sequence[torch.Tensor] = found[_WEIGHT : _BIAS + has_bias]
    return own


def _are_plain(*tensors: Any) -> bool:
    """Return True if these are dense real tensors and not instances of a subclass.

    A subclass may override operations, and gradients of complex numbers are conjugated.
    """
    return all(
        type(each) in _DENSE and each.layout is torch.strided and not each.is_complex()
        for each in tensors
    )


class Splits:
    """The candidates whose backwards are split on a stage, and the state of each.

    Args:
        chosen: for each stream, the pairs (block, option).
        kinds: for each stream and block, the first block with the same candidates.
    """

    def __init__(
        self, chosen: Sequence[Container[tuple[int, int]]], kinds: Sequence[Sequence[int]]
    ) -> None:
        self._chosen, self._kinds = tuple(chosen), tuple(kinds)
        if any(self._chosen):
            watch_hooks()  # before the first forward
        self._known: dict[tuple[StreamId, int, int, bool], SplitBackward] = {}

    def of(self, layer: LayerId, option: int, has_end: bool) -> SplitBackward | None:
        """Return the split backward of an option of a layer; None for a whole backward.

        ``has_end`` is True if the block computes a loss.
        """
        stream, block = layer.stream, layer.block
        if (block, option) not in self._chosen[stream]:
            return None
        key = (stream, self._kinds[stream][block], option, has_end)
        return self._known.setdefault(key, SplitBackward())

    @property
    def whole(self) -> Iterator[tuple[StreamId, int, int, str]]:
        for (stream, block, option, _), each in self._known.items():
            if each.why_whole:
                yield stream, block, option, each.why_whole
