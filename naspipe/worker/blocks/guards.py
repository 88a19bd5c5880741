"""Guards around calls of user-defined layers and losses.

They detect operations that would corrupt the results of other passes: in-place edits, hooks on
graphs, gradients of tensors outside the layers, and state of a loss.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, wraps
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from naspipe.config.errors import BlockInputEditedError, ConfigError
from naspipe.jobs.losses import Loss, name_of_loss
from naspipe.machine.device_waits import Wait
from naspipe.machine.staging import same_bits
from naspipe.worker.layers.held_tensors import held_tensors, leaves_of

_LEAF = "a view of a leaf Variable"
"""Part of the error message of torch."""


def times_edited(tensor: torch.Tensor) -> int:
    """Return how often a tensor was changed in place; 0 if torch does not count changes."""
    return 0 if tensor.is_inference() else tensor._version


class Edits:
    """Detects whether a call changed its inputs or batch fields in place.

    Torch does not count changes made through ``tensor.data`` or by NumPy. With ``looks_at_bits``,
    the bits are compared as well.
    """

    __slots__ = ("_before", "_copies", "_given", "_num_inputs")

    def __init__(
        self,
        inputs: Sequence[torch.Tensor],
        fields: Sequence[torch.Tensor] = (),
        looks_at_bits: bool = False,
    ) -> None:
        self._given, self._num_inputs = (*inputs, *fields), len(inputs)
        self._before = [times_edited(each) for each in self._given]
        self._copies = [each.detach().clone() for each in self._given] if looks_at_bits else None

    def check(self, name: Callable[[], str]) -> None:
        """Raise BlockInputEditedError if the call, named ``name()``, changed something."""
        for place, each in enumerate(self._given):
            is_same = self._copies is None or same_bits(each, self._copies[place], Wait.INPUT)
            if times_edited(each) != self._before[place] or not is_same:
                what = "its input" if place < self._num_inputs else "a field of its batch"
                raise _edited(name(), what)

    @staticmethod
    def explain(error: BaseException, name: Callable[[], str]) -> None:
        """Raise BlockInputEditedError if ``error`` is an error of torch about such an edit."""
        if isinstance(error, RuntimeError) and _LEAF in str(error) and "in-place" in str(error):
            raise _edited(name(), "its input") from error


@contextmanager
def left_as_it_is(
    name: str,
    inputs: Sequence[torch.Tensor],
    fields: Sequence[torch.Tensor] = (),
    looks_at_bits: bool = False,
) -> Iterator[None]:
    """Raise BlockInputEditedError if the call in this context changes its inputs or fields."""
    edits = Edits(inputs, fields, looks_at_bits)
    try:
        yield
    except RuntimeError as error:
        edits.explain(error, lambda: name)
        raise
    edits.check(lambda: name)


def _edited(name: str, what: str) -> BlockInputEditedError:
    whom = "the block before it" if what == "its input" else "what others find in the batch"
    return BlockInputEditedError(
        f"{name} changes {what} in place, which would corrupt {whom}; use the out-of-place "
        f"operation (for example inplace=False, or x = x * 2 for x *= 2)"
    )


_WATCHED = (
    (torch.Tensor, "register_hook", "its forward puts a hook on a tensor"),
    (torch.Tensor, "retain_grad", "its forward keeps the gradient of a tensor"),
    (saved_tensors_hooks, "__enter__", "its forward has hooks on saved tensors, as checkpoints do"),
)
"""Methods whose calls are counted, each with a description of a call in a forward.
Non-reentrant checkpoints and ``save_on_cpu`` enter ``saved_tensors_hooks``."""


class _Calls(threading.local):
    """Numbers of calls of each watched method in this thread."""

    def __init__(self) -> None:
        self.numbers = [0] * len(_WATCHED)


_CALLS = _Calls()


@cache
def watch_hooks() -> None:
    """Start counting hooks in this process and in processes forked from it."""
    for number, (owner, name, _) in enumerate(_WATCHED):
        setattr(owner, name, _counted(getattr(owner, name), number))


def hook_calls() -> tuple[int, ...]:
    return tuple(_CALLS.numbers)


def hooks_since(before: tuple[int, ...]) -> str:
    """Return a clause that describes the first kind of hook added since then; empty if none."""
    for old, new, (_, _, meaning) in zip(before, _CALLS.numbers, _WATCHED, strict=True):
        if new != old:
            return meaning
    return ""


def _counted(method: Callable[..., Any], number: int) -> Callable[..., Any]:
    @wraps(method)
    def counted(*given: Any, **named: Any) -> Any:
        _CALLS.numbers[number] += 1
        return method(*given, **named)

    return counted


class OutsideGradientError(ConfigError):
    """Raised if a layer or the loss has a gradient for a tensor that belongs to no layer."""


def check_loss_leaves(
    name: str, loss: object, found: Iterable[torch.Tensor], inside: Iterable[torch.Tensor]
) -> None:
    """Check that a loss has gradients only for its outputs, its fields and its own parameters.

    Args:
        name: the name of the loss in messages.
        loss: the user's loss, which is searched for the holder of an outside tensor.
        found: the returned tensors.
        inside: the outputs and fields passed to the loss, or the leaves that they depend on, and
            the parameters of a loss that is a layer.
    """
    if where := _outside(found, inside, loss, "loss"):
        raise OutsideGradientError(
            f"loss {name}: expected a gradient for the outputs alone, found one for {where}, "
            f"which is outside the layers that a run trains (npp.chain trains copies of its "
            f"modules); compute this term in the layer that has the tensor and return it "
            f"beside the output, make the loss an nn.Module that registers the tensor if it "
            f"belongs to the loss, or freeze it by requires_grad_(False) if it is constant"
        )


def check_layer_leaves(
    name: str, module: nn.Module, found: Iterable[torch.Tensor], inside: Iterable[torch.Tensor]
) -> None:
    """Check that a layer has gradients only for its inputs, its fields and its own parameters.

    ``found`` are the returned tensors; ``inside`` are the layer's inputs, fields and own tensors.
    """
    inside = (*inside, *module.parameters(), *module.buffers())
    if where := _outside(found, inside, module, type(module).__name__):
        raise OutsideGradientError(
            f"{name}: expected gradients for its inputs and its own parameters alone, found "
            f"one for {where}, which the run does not train; register it as a parameter of "
            f"the layer (nn.Parameter, nn.ParameterList), let the layer that has it return "
            f"it, or freeze it by requires_grad_(False) if it is constant"
        )


def _outside(
    found: Iterable[torch.Tensor], inside: Iterable[torch.Tensor], root: object, name: str
) -> str:
    """Describe the first outside tensor that existed before the call by the path of its holder.

    Return an empty string if there is none. A leaf without a holder that is not a parameter was
    created during the call, such as for a gradient penalty, and is freed with the graph.
    """
    known = {id(each) for each in inside}
    outside = {id(leaf): leaf for leaf in leaves_of(found) if id(leaf) not in known}
    if not outside:
        return ""
    for path, tensor in held_tensors(root, name):
        if id(tensor) in outside:
            return f"{path} (shape {list(tensor.shape)})"
    for leaf in outside.values():
        if isinstance(leaf, nn.Parameter):
            return f"a parameter of another module (shape {list(leaf.shape)})"
    return ""


class LossState:
    """Guards the buffers of a loss, which are neither saved in checkpoints nor sent to stages.

    Only a module has buffers. The loss is None if it is part of a layer of the run.
    """

    def __init__(self, loss: Loss | None) -> None:
        self._name = name_of_loss(loss)
        self._modules = list(loss.modules()) if isinstance(loss, nn.Module) else []

    @contextmanager
    def left_as_it_is(self) -> Iterator[None]:
        """Raise ConfigError if the loss changes a buffer when called in this context."""
        before = self._seen()
        yield
        for (name, *seen), (_, *earlier) in zip(self._seen(), before, strict=True):
            if seen != earlier:
                raise ConfigError(
                    f"loss {self._name}: expected the same result for the same batch, as no "
                    f"checkpoint keeps what a loss does, found it to change its buffer {name}; "
                    f"keep it in the last layer, which may return it beside its output"
                )

    def _seen(self) -> list[tuple[str, int, int]]:
        return [
            (name, id(buffer), times_edited(buffer))
            for module in self._modules
            for name, buffer in module._buffers.items()
            if buffer is not None
        ]
