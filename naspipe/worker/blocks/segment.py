"""One block as its own autograd segment: forward, recomputation and backward.

Two public rules give per-block segments the bits of one full graph: a block takes one alias (a
view) of each of its inputs, so that gradients fan in per block first, and its random draws are
keyed by :func:`naspipe.machine.determinism.block_seed`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn

from naspipe.config.errors import ConfigError
from naspipe.config.rules import Exact
from naspipe.config.user_code import add_call, called
from naspipe.machine.determinism import backward_seed, seed_draws
from naspipe.machine.out_of_memory import raising_shortages
from naspipe.machine.staging import same_bits
from naspipe.mixed.edges import MixedEdge
from naspipe.worker.blocks.guards import (
    Edits,
    check_layer_leaves,
    check_loss_leaves,
    hook_calls,
    hooks_since,
)
from naspipe.worker.blocks.specs import (
    Gradient,
    SegmentSpec,
    Tensors,
    backward_from,
    form_of,
    form_text,
)
from naspipe.worker.blocks.split_backward import Graph, Owed, SplitBackward
from naspipe.worker.layers.bound_layer import BoundLayer, refused
from naspipe.worker.layers.held_tensors import leaves_of
from naspipe.worker.layers.kept_state import KNOWN, Statistics, collected

_ABSENT: Any = object()
"""Stands for a buffer that a module does not have."""

_Buffers = dict[tuple[nn.Module, str], Any]
"""Tensors, None or ``_ABSENT``, by the module that has the buffer and its name there."""


class Segment:
    """The forward of one block in one pass, kept until its backward.

    Args:
        spec: what is fixed about the block.
        layer: the layer, bound at the version that this pass reads.
        inputs: leaf tensors; ``requires_grad`` says whether a gradient is wanted.
        keeps_graph: keep what autograd saved; otherwise recompute the forward.
        may_lose_graph: :meth:`drop_graph` may be called, so keep what a recomputation needs.
    """

    def __init__(
        self,
        spec: SegmentSpec,
        layer: BoundLayer,
        inputs: Tensors,
        keeps_graph: bool,
        may_lose_graph: bool = False,
    ) -> None:
        self._spec = spec
        self.has_end = spec.finish is not None
        """Whether a loss arises in the block."""
        self._layer = layer
        self._inputs = inputs
        self._outputs: Tensors | None = None
        self._arrived: list[Gradient] = [None] * len(inputs)
        """What the backward has brought to each input, in the layout in which it came."""
        self._buffers: _Buffers = {}
        """Buffers that the forward has changed, as they were before it."""
        self.statistics: Statistics = {}
        """Batch statistics of the forward, if norms are deferred."""
        self.owed: Owed | None = None
        """What the backward has left to be computed before the layer's update."""
        self._hooks = ""
        """What the last forward has put on its graph; see :class:`Graph`."""
        self._keeps_graph = keeps_graph
        self._copies_buffers = may_lose_graph or not keeps_graph or not isinstance(spec.rule, Exact)
        """Whether it matters that the forward writes buffers."""

    def forward(self) -> Tensors:
        """Compute the block; returns leaf tensors for the next one.

        Raises:
            BlockInputEditedError: if the block or the loss changed in place what others have.
            ConfigError: if it returns something that is not tensors, or writes buffers
                that its rule does not allow.
        """
        spec, layer, is_exact = self._spec, self._layer, isinstance(self._spec.rule, Exact)
        # Batch normalisation writes its statistics without raising their version counters, so only
        # the bytes tell.
        before: _Buffers = {
            (owner, name): None if buffer is None else buffer.clone()
            for owner in (layer.module.modules() if self._copies_buffers else ())
            for name, buffer in owner._buffers.items()
        }
        try:
            with raising_shortages():
                outputs = self._compute(self.statistics)
        except torch.OutOfMemoryError:
            _put_back(self._with_new(before))  # as if it had never begun
            raise
        if layer.edited:
            obstacle = spec.edit_obstacle
            if not is_exact:
                obstacle = f"rule {spec.rule}"
            elif not obstacle and layer.is_version:
                obstacle = "readers of older versions"
            if obstacle or not self._keeps_graph:
                raise refused(self._name, layer.edited, obstacle or "recompute")
        for (owner, name), copy in self._with_new(before).items():
            is_statistic = is_exact and type(owner) in KNOWN  # to compare is to wait for the device
            if not is_statistic and _is_same(owner._buffers.get(name, _ABSENT), copy):
                continue
            if not is_exact:
                raise ConfigError(
                    f"layer {spec.label}: its forward writes the buffer {name}, which rule "
                    f"{spec.rule} does not allow; use the rule exact, or a layer that "
                    f"keeps no running statistics"
                )
            self._buffers[owner, name] = copy
        if self._keeps_graph:
            self._outputs = outputs
        return tuple(
            output.detach().requires_grad_() if output.requires_grad else output.detach()
            for output in outputs
        )

    def backward(
        self, gradients: Sequence[Gradient], split: SplitBackward | None = None
    ) -> tuple[Gradient, ...]:
        """Take the gradients of the outputs; returns those of the inputs, None for absent ones.

        The parameters' gradients are left in the bound layer, in memory that no other has. Those
        that ``split`` leaves for later are in ``owed``.

        Raises:
            torch.OutOfMemoryError: if memory is short; see :meth:`undo_backward`.
        """
        with raising_shortages(), self._layer.in_place():
            outputs = self._outputs if self._outputs is not None else self._recompute()
            roots = [
                (output, gradient)
                for output, gradient in zip(outputs, gradients, strict=True)
                if output.requires_grad and gradient is not None
            ]
            if roots:
                seed = backward_seed(self._spec.seed)
                seed_draws(seed)
                with called(lambda: f"in the backward of {self._name}"):
                    if split is None or self._layer.edited:
                        backward_from(roots)
                    else:
                        graph = Graph(
                            roots,
                            self._inputs,
                            self._arrived,
                            self._layer,
                            seed,
                            f"in the backward of {self._name}",
                            self._hooks,
                        )
                        self.owed = split.run(graph)
                self._layer.part_gradients((*gradients, *self._arrived))
        found = tuple(self._arrived)
        self._arrived[:] = [None] * len(found)
        return found

    @property
    def kept(self) -> Iterator[torch.Tensor]:
        """The tensors held for the backward, without what autograd saved."""
        yield from self._inputs
        yield from self._outputs or ()
        yield from (each for each in self._buffers.values() if isinstance(each, torch.Tensor))

    def drop_graph(self) -> None:
        """Forget what autograd saved: the backward will recompute the forward.

        Call this before memory that autograd saved changes: autograd would not notice, and its
        gradients would be silently wrong.
        """
        if not self._layer.edited:  # else another forward would compute something else
            self._outputs = None

    def undo_backward(self) -> None:
        self.drop_graph()
        self._layer.take_gradients()

    def take_gradients(self) -> dict[str, torch.Tensor]:
        return self._layer.take_gradients()

    def _with_new(self, before: _Buffers) -> _Buffers:
        if not self._copies_buffers:
            return before
        new = {
            (owner, name): _ABSENT
            for owner in self._layer.module.modules()
            for name in owner._buffers
            if (owner, name) not in before
        }
        return before | new

    def _recompute(self) -> Tensors:
        """Compute the forward again with the buffers it first saw; the present ones stay."""
        after: _Buffers = {
            (owner, name): owner._buffers.get(name, _ABSENT) for owner, name in self._buffers
        }
        _put_back(self._buffers)
        try:
            return self._compute({})
        finally:
            _put_back(after)

    def _compute(self, statistics: Statistics) -> Tensors:
        spec = self._spec
        seed_draws(spec.seed)
        if spec.precision == "fp32" and torch.is_grad_enabled():
            return self._computed(statistics)
        with torch.enable_grad(), autocast(spec.precision, spec.device_type):
            return self._computed(statistics)

    def _computed(self, statistics: Statistics) -> Tensors:
        spec, arrived = self._spec, self._arrived
        aliases = [leaf.view_as(leaf) for leaf in self._inputs]
        for place, alias in enumerate(aliases):
            arrived[place] = None
            if (node := alias.grad_fn) is not None:
                node.register_prehook(partial(_arrive, arrived, place))
        if not spec.defers_norms:
            return self._found(aliases)
        with collected(self._layer.module) as seen:
            outputs = self._found(aliases)
        statistics.update(seen)
        return outputs

    def _found(self, aliases: Sequence[torch.Tensor]) -> Tensors:
        """Return the outputs of the layer, or the loss if it arises in this block."""
        spec, layer = self._spec, self._layer
        edits = Edits(self._inputs, spec.fields, layer.is_first)
        before = hook_calls()
        try:
            outputs = as_tuple(layer.call(*aliases, *spec.fields, **spec.setting), spec)
        except Exception as error:
            given = (*self._inputs, *spec.fields)
            add_call(error, lambda: f"in {self._name}, called with {form_text(form_of(given))}")
            edits.explain(error, self._block_name)
            raise
        self._hooks = hooks_since(before)
        edits.check(self._block_name)
        if layer.is_first:
            inside = (*self._inputs, *spec.fields, *layer.parameters.values())
            check_layer_leaves(self._name, layer.module, outputs, inside)
        if spec.finish is None:
            return outputs
        own = layer.parameters.values() if spec.computes_loss else ()
        with called(lambda: f"in the loss, called with {form_text(form_of(outputs))}"):
            finish = partial(layer.run, spec.finish) if spec.computes_loss else spec.finish
            found: Tensors = finish(outputs)
        self._hooks = hooks_since(before)
        if not any(each.requires_grad for each in found):
            self._check_learns(outputs)
        if layer.is_first:
            inside = (*leaves_of(outputs), *spec.fields, *own)
            check_loss_leaves("of the run", spec.finish, found, inside)
        return found

    def _check_learns(self, outputs: Tensors) -> None:
        """Raise ConfigError for a loss without gradients though the layer or its inputs want one.

        A plain loop would raise in its backward. In a round of architecture parameters, a mixed
        edge without a choice has nothing to learn.
        """
        layer = self._layer
        wanting = (*self._inputs, *layer.parameters.values())
        is_mixed = any(isinstance(each, MixedEdge) for each in layer.module.modules())
        if is_mixed or not torch.is_grad_enabled() or not any(t.requires_grad for t in wanting):
            return
        has_way = any(each.requires_grad for each in outputs)
        where, what = ("the loss", "output") if has_way else (self._name, "input and the weights")
        raise ConfigError(
            f"{where}: expected a number that gradients go back from, found one that depends on no "
            f"layer; compute it from the {what}, without detach() and no_grad()"
        )

    @property
    def _name(self) -> str:
        return f"layer {self._spec.label} ({type(self._layer.module).__name__})"

    def _block_name(self) -> str:
        return f"block {self._spec.label} ({type(self._layer.module).__name__})"


def _put_back(buffers: _Buffers) -> None:
    for (owner, name), buffer in buffers.items():
        if buffer is _ABSENT:
            owner._buffers.pop(name, None)
        else:
            owner._buffers[name] = buffer


def _is_same(buffer: Any, copy: Any) -> bool:
    if isinstance(buffer, torch.Tensor) and isinstance(copy, torch.Tensor):
        return same_bits(buffer, copy)
    return buffer is copy


def _arrive(
    arrived: list[Gradient], place: int, gradients: tuple[Gradient, ...]
) -> tuple[None, ...]:
    """Keep an input's gradient as it is, and leave nothing for the leaf.

    A leaf's ``grad`` gets the leaf's own layout. In a graph that is not cut the gradient keeps its
    strides, and kernels of the block before may add in another order for other strides.
    """
    (arrived[place],) = gradients
    return (None,)


def as_tuple(outputs: Any, spec: SegmentSpec) -> Tensors:
    """Return a block's outputs as a tuple; raises ConfigError if they are not tensors."""
    result = outputs if isinstance(outputs, tuple) else (outputs,)
    for output in result:
        if not isinstance(output, torch.Tensor):
            raise ConfigError(
                f"layer {spec.label}: expected a tensor or a tuple of tensors, "
                f"found {type(output).__name__}"
            )
    return result


def autocast(precision: str, device_type: str) -> AbstractContextManager[Any]:
    if precision == "bf16":
        return torch.autocast(device_type, dtype=torch.bfloat16)
    return nullcontext()
