"""One block as its own autograd segment: forward, recompute and backward.

Two public rules make per-block segments leave the bits of one full graph: a block takes
one alias (a view) of each of its inputs, so that gradients fan in per block first, and its
random draws are keyed by :func:`naspipe.machine.determinism.block_seed`.
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


class _Absent:
    """Stands for a buffer that a module does not have."""


_ABSENT = _Absent()

_Buffer = torch.Tensor | _Absent | None
_Buffers = dict[tuple[nn.Module, str], _Buffer]
"""By the module that has them and what that calls them."""


class Segment:
    """The forward of one block in one pass, kept until its backward.

    Args:
        spec: what is fixed about the block.
        layer: the layer, bound at the version this pass reads.
        inputs: leaf tensors; ``requires_grad`` says whether a gradient is wanted.
        keeps_graph: keep what autograd saved; otherwise compute the forward again.
        may_lose_graph: :meth:`drop_graph` may be called, so keep what a recompute needs.
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
        self._layer = layer
        self._inputs = inputs
        self._outputs: Tensors | None = None
        self._arrived: list[Gradient] = [None] * len(inputs)
        """What the backward has brought to each input, in the layout in which it came."""
        self._buffers: _Buffers = {}
        """Those that the forward has changed, as they were before it."""
        self.statistics: Statistics = {}
        """Of the forward, where they are deferred."""
        self.owed: Owed | None = None
        """What the backward has left to be computed before the layer's update."""
        self._hooks = ""
        """What the last forward has put on its graph; see :class:`Graph`."""
        self._keeps_graph = keeps_graph
        self._may_recompute = may_lose_graph or not keeps_graph

    def forward(self) -> Tensors:
        """Compute the block; returns leaf tensors for the next one.

        Raises:
            BlockInputEditedError: when the block or the loss changed in place what others have.
            ConfigError: when it returns something that is not tensors, or writes buffers
                that its rule does not allow.
        """
        before = self._buffer_copies()
        try:
            with raising_shortages():
                outputs = self._compute(self.statistics)
        except torch.OutOfMemoryError:
            _put_back(self._added_to(before))  # as if it had never begun
            raise
        is_exact = isinstance(self._spec.rule, Exact)
        self._check_edit(is_exact)
        for (owner, name), copy in self._added_to(before).items():
            is_statistic = is_exact and type(owner) in KNOWN  # to compare is to wait for the device
            if not is_statistic and _is_same(owner._buffers.get(name, _ABSENT), copy):
                continue
            if not is_exact:
                raise ConfigError(
                    f"layer {self._spec.label}: its forward writes the buffer {name}, which rule "
                    f"{self._spec.rule} does not allow; use the rule exact, or a layer that "
                    f"keeps no running statistics"
                )
            self._buffers[owner, name] = copy
        if self._keeps_graph:
            self._outputs = outputs
        return tuple(_leaf(output) for output in outputs)

    def backward(
        self, gradients: Sequence[Gradient], split: SplitBackward | None = None
    ) -> tuple[Gradient, ...]:
        """Take the gradients of the outputs; returns those of the inputs, absent ones as None.

        The parameters' gradients are left in the bound layer, in memory that no other has. Those
        that ``split`` leaves for later are in ``owed``.

        Raises:
            torch.OutOfMemoryError: when memory was short; see :meth:`undo_backward`.
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
                with called(self._told_backward):
                    if split is None or self._layer.edited:
                        backward_from(roots)
                    else:
                        self.owed = split.run(
                            Graph(
                                roots, self._inputs, self._arrived, self._layer, seed,
                                self._told_backward(), self._hooks,
                            )
                        )  # fmt: skip
                self._layer.part_gradients((*gradients, *self._arrived))
        found = tuple(self._arrived)
        self._arrived[:] = [None] * len(found)
        return found

    @property
    def has_end(self) -> bool:
        """Whether a loss arises in it."""
        return self._spec.finish is not None

    @property
    def kept(self) -> Iterator[torch.Tensor]:
        """The tensors that it holds for its backward; what autograd saved is not among them."""
        yield from self._inputs
        yield from self._outputs or ()
        yield from (each for each in self._buffers.values() if isinstance(each, torch.Tensor))

    def drop_graph(self) -> None:
        """Forget what autograd saved: the backward will compute the forward again.

        To be called before memory that it holds changes: autograd would not notice, and its
        gradients would be silently wrong.
        """
        if not self._layer.edited:  # else another forward would compute something else
            self._outputs = None

    def undo_backward(self) -> None:
        """As if a backward that failed half-way had never begun."""
        self.drop_graph()
        self._layer.take_gradients()

    def take_gradients(self) -> dict[str, torch.Tensor]:
        """Move the parameters' gradients out of the layer."""
        return self._layer.take_gradients()

    def _check_edit(self, is_exact: bool) -> None:
        """Refuse a parameter that the forward has changed, unless the change stays as it is.

        Raises:
            EditedParameterError: when it does not.
        """
        spec, layer = self._spec, self._layer
        if not layer.edited:
            return
        obstacle = spec.edit_obstacle
        if not is_exact:
            obstacle = f"rule {spec.rule}"
        elif not obstacle and layer.is_version:
            obstacle = "readers of older versions"
        if obstacle or not self._keeps_graph:
            raise refused(self._name, layer.edited, obstacle or "recompute")

    def _buffer_copies(self) -> _Buffers:
        """Copies of the buffers, where it matters whether the forward writes them.

        Batch normalisation writes its statistics without raising their version counters,
        so only the bytes tell.
        """
        if not self._may_recompute and isinstance(self._spec.rule, Exact):
            return {}
        return {
            (owner, name): None if buffer is None else buffer.clone()
            for owner in self._layer.module.modules()
            for name, buffer in owner._buffers.items()
        }

    def _added_to(self, before: _Buffers) -> _Buffers:
        """The same with the buffers that have come since, where any were looked at."""
        if not self._may_recompute and isinstance(self._spec.rule, Exact):
            return before
        come = {
            (owner, name): _ABSENT
            for owner in self._layer.module.modules()
            for name in owner._buffers
            if (owner, name) not in before
        }
        return before | come

    def _recompute(self) -> Tensors:
        """The forward again, on the buffers it saw at first; the buffers stay as they are now."""
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
        """The outputs of the layer, or the loss if it arises in this block."""
        spec, layer = self._spec, self._layer
        edits = Edits(self._inputs, spec.fields, layer.is_first)
        before = hook_calls()
        try:
            outputs = as_tuple(layer.call(*aliases, *spec.fields, **spec.setting), spec)
        except Exception as error:
            add_call(error, self._told)
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
        """Refuse a loss that no gradient goes back from, though the layer or its inputs want one.

        A plain loop would raise in its backward. In a round of architecture parameters, a mixed
        edge without a choice has nothing to learn.

        Raises:
            ConfigError: if it is so.
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

    def _told(self) -> str:
        given = form_text(form_of((*self._inputs, *self._spec.fields)))
        return f"in {self._name}, called with {given}"

    def _told_backward(self) -> str:
        return f"in the backward of {self._name}"

    def _block_name(self) -> str:
        return f"block {self._spec.label} ({type(self._layer.module).__name__})"

    @property
    def _name(self) -> str:
        return f"layer {self._spec.label} ({type(self._layer.module).__name__})"


def _put_back(buffers: _Buffers) -> None:
    for (owner, name), buffer in buffers.items():
        if isinstance(buffer, _Absent):
            owner._buffers.pop(name, None)
        else:
            owner._buffers[name] = buffer


def _is_same(buffer: _Buffer, copy: _Buffer) -> bool:
    if isinstance(buffer, torch.Tensor) and isinstance(copy, torch.Tensor):
        return same_bits(buffer, copy)
    return buffer is copy


def _arrive(
    arrived: list[Gradient], place: int, gradients: tuple[Gradient, ...]
) -> tuple[None, ...]:
    """Take an input's gradient as it is, and leave nothing for the leaf.

    A leaf's ``grad`` is given the leaf's own layout. In a graph that is not cut the gradient keeps
    its strides, and kernels of the block before may add in another order for others.
    """
    (arrived[place],) = gradients
    return (None,)


def _leaf(output: torch.Tensor) -> torch.Tensor:
    leaf = output.detach()
    return leaf.requires_grad_() if output.requires_grad else leaf


def as_tuple(outputs: Any, spec: SegmentSpec) -> Tensors:
    """A block's outputs.

    Raises:
        ConfigError: when they are not tensors.
    """
    result = outputs if isinstance(outputs, tuple) else (outputs,)
    for output in result:
        if not isinstance(output, torch.Tensor):
            raise ConfigError(
                f"layer {spec.label}: expected a tensor or a tuple of tensors, "
                f"found {type(output).__name__}"
            )
    return result


def autocast(precision: str, device_type: str) -> AbstractContextManager[Any]:
    """The context of a precision: ``bf16``, or nothing."""
    if precision == "bf16":
        return torch.autocast(device_type, dtype=torch.bfloat16)
    return nullcontext()
