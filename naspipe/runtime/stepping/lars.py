"""LARS: layer-wise adaptive rate scaling, for large batches (You, Gitman and Ginsburg 2017)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from naspipe.runtime.devices.device_waits import Wait, on_host


class LARS(torch.optim.Optimizer):
    """SGD whose rate for each parameter follows the norms of it and of its gradient::

        scale = trust * |w| / (|g| + weight_decay * |w|)
        v = momentum * v + lr * scale * (g + weight_decay * w)
        w = w - v

    That is algorithm 1 of the paper. Parameters of less than two dimensions, which are biases and
    norms, have no decay and no scale, as BYOL and SimCLR have it (Grill et al. 2020, section 3.3).
    A parameter or a gradient whose norm is 0 has the scale 1.

    Args:
        params: to step.
        lr: the global rate.
        momentum: of ``v``.
        weight_decay: of parameters with two dimensions or more.
        trust: how far a step may go, in norms of the parameter.
    """

    def __init__(
        self,
        params: Iterable[torch.nn.Parameter],
        lr: float = 0.1,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust: float = 0.001,
    ) -> None:
        if min(lr, momentum, weight_decay, trust) < 0:
            raise ValueError("expected numbers of 0 or more")
        usual = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust}
        super().__init__(params, usual)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One step of every parameter that has a gradient."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step(parameter, group)

    def _step(self, parameter: torch.nn.Parameter, group: dict[str, Any]) -> None:
        gradient, scale = parameter.grad, 1.0
        assert gradient is not None, "only such parameters are stepped"
        if parameter.dim() > 1:
            decay = group["weight_decay"]
            norm = float(on_host(parameter.norm(), Wait.TRUST))
            of_gradient = float(on_host(gradient.norm(), Wait.TRUST))
            if norm > 0 and of_gradient > 0:
                scale = group["trust"] * norm / (of_gradient + decay * norm)
            gradient = gradient.add(parameter, alpha=decay)
        state = self.state[parameter]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        velocity = state["momentum_buffer"]
        velocity.mul_(group["momentum"]).add_(gradient, alpha=group["lr"] * scale)
        parameter.sub_(velocity)
