"""Step the optimizers of many layers in host memory with one call per operation.

Adam for 50 small layers with ten tensors each makes eight calls for each of 500 tensors; joint
steps make eight calls for a hundred tensors. Each tensor undergoes the same operations, so the
results are bitwise equal.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from naspipe.config.rules import OwnStep
from naspipe.worker.layers.own_steps import (
    FACTOR,
    GROUP,
    is_bare,
    parameters_of,
    set_rates,
    step_of,
)

JOINED = ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "Adamax", "Rprop")
"""Optimizers whose ``foreach`` is bitwise equal to their loop over parameters, with any options."""

ENTRIES = 1 << 18
"""Maximum number of entries stepped in one call. More would be evicted from the processor's cache
between two operations."""

ENOUGH = 8
"""Minimum number of parameters for ``foreach`` on a single layer; with fewer, a loop is as fast."""

_KINDS = {getattr(torch.optim, name) for name in JOINED}
_PRECISIONS = (torch.float32, torch.float64)  # foreach rounds lower precisions differently

_Options = Mapping[str, Any]
"""An optimizer's group without its parameters."""


class JointSteps:
    """Collects pending steps of optimizers of one layer each; :meth:`take` executes them."""

    def __init__(self) -> None:
        self._due: list[torch.optim.Optimizer] = []

    def takes(self, optimizer: torch.optim.Optimizer, own: OwnStep, lr: float) -> bool:
        """Return True if the step was queued; its gradients must be kept until :meth:`take`.

        The parameters of ``optimizer`` have the gradients of one step. ``lr`` is the recipe's rate.
        """
        # Only plain steps of the optimizer's class in host memory with a loop can be joined.
        if (
            own.every > 1
            or own.predicts
            or type(optimizer) not in _KINDS
            or not is_bare(optimizer)
            or any(g.get("foreach") is False or g.get("fused") for g in optimizer.param_groups)
            or not all(
                each.is_cpu
                and each.dtype in _PRECISIONS
                and (each.grad is None or each.grad.layout is torch.strided)
                for each in parameters_of(optimizer)
            )
        ):
            return False
        set_rates(optimizer, own, lr)
        self._due.append(optimizer)
        return True

    @torch.no_grad()
    def take(self) -> None:
        """Execute the pending steps, and clear the gradients."""
        due, self._due = self._due, []
        alike: dict[type, list[torch.optim.Optimizer]] = {}
        for optimizer in due:
            alike.setdefault(type(optimizer), []).append(optimizer)
        for optimizers in alike.values():
            if len(optimizers) > 1:
                _step(optimizers)
            else:
                _step_alone(optimizers[0])
        for optimizer in due:
            for parameter in parameters_of(optimizer):
                parameter.grad = None


def _step_alone(optimizer: torch.optim.Optimizer) -> None:
    """Step one optimizer, with one call for all parameters if it has enough of them."""
    groups = optimizer.param_groups
    if not optimizer.state or not all(  # without state there are few calls to save
        len(group["params"]) >= ENOUGH
        and sum([each.numel() for each in group["params"]]) <= ENTRIES
        and _has_same_bits(type(optimizer), _options(group))
        for group in groups
    ):
        step_of(optimizer)
        return
    asked = [group.get("foreach") for group in groups]
    for group in groups:
        group["foreach"] = True
    step_of(optimizer)
    for group, before in zip(groups, asked, strict=True):
        group["foreach"] = before


def _step(optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Step optimizers of one class as if a single optimizer had all parameters."""
    kind: type[Any] = type(optimizers[0])
    groups = _joined(optimizers)
    if not all(_has_same_bits(kind, _options(group)) for group in groups):
        for optimizer in optimizers:
            step_of(optimizer)
        return
    state: defaultdict[torch.Tensor, Any] = defaultdict(dict)
    for optimizer in optimizers:
        state.update(optimizer.state)
    num_known = len(state)
    joint = object.__new__(kind)
    joint.__dict__ |= {**vars(optimizers[0]), "state": state, "param_groups": groups}
    step_of(joint)
    if len(state) > num_known:
        for optimizer in optimizers:
            new = (each for each in parameters_of(optimizer) if each not in optimizer.state)
            optimizer.state.update({each: state[each] for each in new if each in state})


def _joined(optimizers: Iterable[torch.optim.Optimizer]) -> list[dict[str, Any]]:
    """Group parameters with the same options, up to ``ENTRIES`` entries in each group."""
    found: list[dict[str, Any]] = []
    filled: list[tuple[_Options, int]] = []
    for group in (group for optimizer in optimizers for group in optimizer.param_groups):
        options = _options(group)
        size = sum([each.numel() for each in group["params"]])
        for place, (those, before) in enumerate(filled):
            if before + size <= ENTRIES and those == options:
                found[place]["params"] += group["params"]
                filled[place] = those, before + size
                break
        else:
            found.append({**group, "params": [*group["params"]], "foreach": True})
            filled.append((options, size))
    return found


def _options(group: Mapping[str, Any]) -> _Options:
    return {name: value for name, value in group.items() if name != "params"}


_STEPS = 3
_LEFT_OUT = ("lr", GROUP, FACTOR)
_proved: list[tuple[type, _Options, bool]] = []


def _has_same_bits(kind: type[Any], options: _Options) -> bool:
    """Return True if both ways are bitwise equal in this version of torch, tested on small tensors.

    The test ignores the rate and the group, because they vary between steps and layers.
    """
    given = {name: value for name, value in options.items() if name not in _LEFT_OUT}
    for known, those, is_same in _proved:
        if known is kind and those == given:
            return is_same
    one, other = (_stepped(kind, {**given, "foreach": joined}) for joined in (False, True))
    _proved.append((kind, given, all(map(torch.equal, one, other))))
    return _proved[-1][-1]


def _stepped(kind: type[Any], options: _Options) -> list[torch.Tensor]:
    """Return parameters and their optimizer state after a few steps."""
    parameters = [
        torch.nn.Parameter(torch.linspace(-1.0, 1.0, size).sin()) for size in (1, 37, 256)
    ]
    optimizer: torch.optim.Optimizer = kind(parameters)
    optimizer.param_groups[0] |= options
    for step in range(_STEPS):
        for parameter in parameters:
            parameter.grad = torch.cos(parameter.detach() * (step + 2))
        step_of(optimizer)
    states = [optimizer.state[parameter] for parameter in parameters]
    kept = [state[name] for state in states for name in sorted(state)]
    return [*parameters, *(each for each in kept if torch.is_tensor(each))]
