"""One block as a separate autograd segment: forward, recomputation and backward.

Two public rules make per-block segments bitwise equal to one full graph: a block takes one alias
(a view) of each of its inputs, so that gradients are first accumulated per block, and its random
draws are keyed by :func:`naspipe.machine.determinism.block_seed`.
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
"""Represents a buffer that a module does not have."""

_Buffers = dict[tuple[nn.Module, str], Any]
"""Tensors, None or ``_ABSENT``, by the module that owns the buffer and its name in that module."""


class Segment:
    """The forward of one block in one pass, kept until its backward.

    Args:
        spec: the fixed properties of the block.
        layer: the layer, bound at the version that this pass reads.
        inputs: leaf tensors, with ``requires_grad`` set where a gradient is needed.
        keeps_graph: whether to keep the graph; otherwise the backward recomputes the forward.
        may_lose_graph: whether :meth:`drop_graph` may be called, so that the state needed for a
            recomputation must be kept.
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
        """Whether the block computes a loss."""
        self._layer = layer
        self._inputs = inputs
        self._outputs: Tensors | None = None
        self._arrived: list[Gradient] = [None] * len(inputs)
        """The gradient that the backward computed for each input, with its original strides."""
        self._buffers: _Buffers = {}
        """The values, before the forward, of the buffers that it has changed."""
        self.statistics: Statistics = {}
        """Batch statistics of the forward, if norm updates are deferred."""
        self.owed: Owed | None = None
        """Gradients that the backward has deferred until the layer's update."""
        self._hooks = ""
        """Description of hooks that the last forward added to its graph; see :class:`Graph`."""
        self._keeps_graph = keeps_graph
        self._copies_buffers = may_lose_graph or not keeps_graph or not isinstance(spec.rule, Exact)
        """Whether the forward copies buffers first, to detect or undo its writes."""

    def forward(self) -> Tensors:
        """Compute the block, and return leaf tensors for the next block.

        Raises:
            BlockInputEditedError: if the block or the loss changed shared tensors in place.
            ConfigError: if the block returns anything but tensors, or writes buffers that its rule
                does not allow it to write.
        """
        spec, layer, is_exact = self._spec, self._layer, isinstance(self._spec.rule, Exact)
        # Batch normalisation writes its statistics without incrementing their version counters, so
        # the bytes must be compared.
        before: _Buffers = {
            (owner, name): None if buffer is None else buffer.clone()
            for owner in (layer.module.modules() if self._copies_buffers else ())
            for name, buffer in owner._buffers.items()
        }
        try:
            with raising_shortages():
                outputs = self._compute(self.statistics)
        except torch.OutOfMemoryError:
            _put_back(self._with_new(before))  # restore the state before the forward
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
            is_statistic = is_exact and type(owner) in KNOWN  # comparing waits for the device
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
        """Compute the gradients of the inputs from those of the outputs; None for absent ones.

        The parameters' gradients are left in the bound layer, in memory that is not shared. Those
        that ``split`` defers are in ``owed``.

        Raises:
            torch.OutOfMemoryError: if memory runs out; see :meth:`undo_backward`.
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
        """The tensors held for the backward, without those saved by autograd."""
        yield from self._inputs
        yield from self._outputs or ()
        yield from (each for each in self._buffers.values() if isinstance(each, torch.Tensor))

    def drop_graph(self) -> None:
        """Release the graph, so that the backward recomputes the forward.

        Call this before memory saved by autograd is changed: autograd would not detect the change,
        and its gradients would be silently wrong.
        """
        if not self._layer.edited:  # otherwise another forward would give a different result
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
        """Recompute the forward with the original buffers, then restore the present ones."""
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
        """Return the outputs of the layer, or the loss if this block computes it."""
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
        """Raise ConfigError for a loss without a graph although the layer or its inputs need one.

        A plain loop would raise in its backward. In a round of architecture parameters, a mixed
        edge without a choice has no parameters to train.
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
    """Store an input's gradient unchanged, and pass no gradient to the leaf.

    A leaf's ``grad`` is given the strides of the leaf. In an uncut graph the gradient keeps its own
    strides, and kernels of the previous block may add in a different order for different strides.
    """
    (arrived[place],) = gradients
    return (None,)


def as_tuple(outputs: Any, spec: SegmentSpec) -> Tensors:
    """Return a block's outputs as a tuple. Raise ConfigError if they are not tensors."""
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
