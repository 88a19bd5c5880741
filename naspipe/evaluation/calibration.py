"""Recompute the running statistics of a subnet whose weights were trained as parts of others.

The running statistics of batch normalization after training are a mixture over all subnets that
used the layer. Before a subnet is evaluated, its statistics are computed again from batches that
pass through it alone.

A module may call torch's ``batch_norm`` and ``instance_norm`` with the buffers of another module,
with parts of them, or with its own buffers. Therefore each layer is run once in training mode, and
the calls that update statistics there also update them here, in any mode of the module. Other
calls, such as that of a frozen norm, keep their statistics.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.overrides import TorchFunctionMode

from naspipe.checks.sketched import sketches
from naspipe.config.errors import ConfigError
from naspipe.config.space import Space
from naspipe.machine.staging import same_bits
from naspipe.plan.costs import first_of_kind
from naspipe.worker.layers.kept_state import buffer_slots

_RUNNING = ("running_mean", "running_var")

_FUNCTIONAL = ("input", *_RUNNING, "weight", "bias", "", "momentum", "eps")
_NATIVE = ("input", "weight", "bias", *_RUNNING, "", "momentum", "eps", "cudnn_enabled")

_TAKING = {
    functional.batch_norm: ("training", _FUNCTIONAL),
    functional.instance_norm: ("use_input_stats", _FUNCTIONAL),
    torch.batch_norm: ("training", _NATIVE),
    torch.instance_norm: ("use_input_stats", _NATIVE),
}
"""The functions that compute norms: the argument that makes them update statistics, and the order
of all arguments."""


def may_keep_statistics(module: nn.Module) -> bool:
    """Return True if a layer has buffers with the names of running statistics."""
    return any(key in _RUNNING for _, _, key in buffer_slots(module))


class Norm(NamedTuple):
    """Running statistics that a layer updates in training mode: owner and names of the buffers."""

    owner: nn.Module
    mean: str
    var: str


class _Watched(TorchFunctionMode):
    """Calls ``change`` for each call of a norm function with buffers of a module."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._places = [
            (range(buffer.data_ptr(), buffer.data_ptr() + buffer.nbytes), (owner, key))
            for _, owner, key in buffer_slots(module)
            if (buffer := owner._buffers[key]) is not None
        ]

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = dict(kwargs or {})
        if func in _TAKING:
            switch, order = _TAKING[func]
            names = [name or switch for name in order]
            given |= dict(zip(names, args, strict=False))
            places = [self._place(given.get(name)) for name in _RUNNING]
            if (mean := places[0]) is not None and (var := places[1]) is not None:
                self.change(Norm(mean[0], mean[1], var[1]), switch, given)
            args = ()
            if order is _NATIVE:  # native functions take no keywords
                args, given = tuple(given[name] for name in names), {}
        return func(*args, **given)

    def _place(self, tensor: Any) -> tuple[nn.Module, str] | None:
        if not isinstance(tensor, torch.Tensor):
            return None
        address = tensor.data_ptr()
        return next((place for memory, place in self._places if address in memory), None)

    def change(self, norm: Norm, switch: str, given: dict[str, Any]) -> None:
        """Inspect and change the arguments of a call."""
        raise NotImplementedError


class _Seen(_Watched):
    """Collects the norms that update statistics."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self.norms: dict[tuple[int, str], Norm] = {}

    def change(self, norm: Norm, switch: str, given: dict[str, Any]) -> None:
        if given.get(switch, switch == "use_input_stats"):
            self.norms.setdefault((id(norm.owner), norm.mean), norm)


class _Taken(_Watched):
    """Makes norms average their statistics over all batches with equal weights."""

    def __init__(self, module: nn.Module, norms: Sequence[Norm]) -> None:
        super().__init__(module)
        self.missing = {(id(norm.owner), norm.mean): norm for norm in norms}
        self._known = set(self.missing)
        self._counts: Counter[tuple[Any, ...]] = Counter()

    def change(self, norm: Norm, switch: str, given: dict[str, Any]) -> None:
        key = id(norm.owner), norm.mean
        if key not in self._known:
            return
        self.missing.pop(key, None)
        mean = given["running_mean"]
        part = *key, mean.data_ptr(), mean.shape
        self._counts[part] += 1
        given[switch], given["momentum"] = True, 1.0 / self._counts[part]


@torch.no_grad()
def find_norms(
    label: str,
    module: nn.Module,
    forward: Callable[[], object],
    otherwise: str = "use calibrate=0",
) -> list[Norm]:
    """Return the running statistics that a layer updates in training mode, without changing it.

    Args:
        label: name of the layer in messages.
        module: module of the layer.
        forward: calls the layer with a batch.
        otherwise: advice in the error message.

    Raises:
        ConfigError: if the layer updates statistics in a way that is not supported.
    """
    if not may_keep_statistics(module):
        return []
    slots = [(part, dict(part._buffers), part.training) for part in module.modules()]
    named = [*buffer_slots(module)]
    copies = {name: _buffer(owner, key).clone() for name, owner, key in named}
    try:
        module.train()
        with _Seen(module) as seen:
            forward()
        for name, owner, key in named:
            is_seen = any(each.owner is owner and key in each[1:] for each in seen.norms.values())
            now = owner._buffers.get(key)
            if (
                key in _RUNNING
                and not is_seen
                and now is not None
                and not same_bits(now, copies[name])
            ):
                raise ConfigError(
                    f"layer {label}: expected running statistics that are taken by "
                    f"torch.nn.functional.batch_norm or instance_norm, found {name} of "
                    f"{type(owner).__name__}, which its own code takes, so that it cannot be taken "
                    f"anew for a subnet; call those functions, or {otherwise}"
                )
        return list(seen.norms.values())
    finally:
        for part, buffers, training in slots:
            part._buffers.clear()
            part._buffers.update(buffers)
            part.training = training
        for name, owner, key in named:
            _buffer(owner, key).copy_(copies[name])


class FreshStatistics:
    """Statistics that are being recomputed; see :func:`fresh_statistics`."""

    def __init__(self, label: str, taken: _Taken, mode: ExitStack) -> None:
        self._label, self._taken, self._mode = label, taken, mode

    def settle(self) -> None:
        """Stop updating the statistics, and use them from now on."""
        self._mode.close()
        for norm in self._taken.missing.values():
            raise ConfigError(
                f"layer {self._label}: expected batches to calibrate with that go through each of "
                f"its norms, found none that goes through one {type(norm.owner).__name__}, whose "
                f"statistics would be mean 0 and variance 1; calibrate with more batches, or use "
                f"calibrate=0"
            )


@contextmanager
def fresh_statistics(
    label: str, module: nn.Module, norms: Sequence[Norm], *, keeps: bool = False
) -> Iterator[FreshStatistics]:
    """Context in which statistics are reset and averaged over all batches, and restored on exit.

    They are updated until :meth:`FreshStatistics.settle`, or until the end.

    Args:
        label: name of the layer in messages.
        module: module of the layer.
        norms: result of :func:`find_norms`.
        keeps: True to keep the new statistics, unless an exception occurs.
    """
    owners = list(dict.fromkeys(norm.owner for norm in norms))
    before = []
    for owner in owners:
        buffers = {name: each.clone() for name, each in owner._buffers.items() if each is not None}
        before.append((owner, getattr(owner, "momentum", None), owner.training, buffers))
    taken, mode = _Taken(module, norms), ExitStack()

    @mode.callback
    def _settle() -> None:
        for owner, momentum, training, _ in before:
            if isinstance(owner, _NormBase):
                owner.momentum = momentum
            owner.training = training

    fresh = FreshStatistics(label, taken, mode)
    try:
        for norm in norms:
            owner = norm.owner
            _buffer(owner, norm.mean).zero_()
            _buffer(owner, norm.var).fill_(1)
            if isinstance(owner, _BatchNorm):
                owner.reset_running_stats()
                owner.momentum = None
                owner.train()
        if norms:
            mode.enter_context(taken)
        yield fresh
        fresh.settle()
    except BaseException:
        keeps = False
        raise
    finally:
        mode.close()
        for owner, _, _, buffers in before:
            for name, buffer in () if keeps else buffers.items():
                here = owner._buffers[name]
                if isinstance(here, torch.Tensor):
                    here.copy_(buffer)


def _buffer(owner: nn.Module, key: str) -> torch.Tensor:
    buffer = owner._buffers[key]
    assert buffer is not None, "it was there"
    return buffer


def blocks_to_calibrate(space: Space) -> int:
    """Return the number of blocks up to the last one that may have running statistics."""
    keeps = {block for block, _, module in sketches(space) if may_keep_statistics(module)}
    return max((b + 1 for b, twin in enumerate(first_of_kind(space)) if twin in keeps), default=0)
