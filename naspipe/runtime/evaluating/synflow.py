"""Synflow: how much flows through a network's weights, without data and without training.

H. Tanaka, D. Kunin, D. Yamins and S. Ganguli, Pruning neural networks without any data by
iteratively conserving synaptic flow, NeurIPS 2020. As a score of whole networks: M. Abdelfattah,
A. Mehrotra, L. Dudziak and N. Lane, Zero-cost proxies for lightweight NAS, ICLR 2021.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from naspipe.config.errors import ConfigError
from naspipe.config.space import Space
from naspipe.runtime.devices.determinism import deterministic_torch
from naspipe.runtime.evaluating.first_weights import FirstLayers
from naspipe.runtime.forking.fitness import done_fit

_NAMES = ("batch_norm", "layer_norm", "group_norm", "instance_norm", "rms_norm")

_NORMS = {getattr(where, name) for where in (functional, torch) for name in _NAMES}
"""What computes norms, whoever calls it."""


class Synflow:
    """Scores subnets by the logarithm of their synaptic flow; more is better.

    With every weight and bias replaced by its absolute value, norms left out and R the sum of what
    the network returns for one input of ones, the flow is the sum of \\|w dR/dw\\| over the
    entries w of all weights of two or more dimensions. All of it in 64 bits. The logarithm leaves
    the ranking as it is: flows of deep networks differ by many powers of ten.

    Args:
        space: whose subnets.
        seed: of the run, whose first weights they have.
        threads: of the compute.
        batch: whose fields' shapes the input has; floats, of shape (B, ...).
    """

    def __init__(
        self, space: Space, seed: int, threads: int, batch: Mapping[str, torch.Tensor]
    ) -> None:
        self._layers = FirstLayers(space, seed, _make_positive, "in float64")
        self._threads = threads
        self._batch = batch

    def check(self, choices: Sequence[int]) -> None:
        """An input of ones must be one that the layers can read.

        Raises:
            ConfigError: naming the field that is not of floats.
        """
        for name in self._layers.fields(choices):
            if not (field := self._batch[name]).is_floating_point():
                raise ConfigError(
                    f"score synflow: expected layers that read floats, as its input is ones, found "
                    f"the field {name} of {str(field.dtype).removeprefix('torch.')}, as of tokens; "
                    f"use --score naswot where layers have ReLU, or loss"
                )

    def __call__(self, choices: Sequence[int]) -> float:
        """The score of a subnet; -inf where nothing flows.

        Raises:
            ConfigError: when a layer fails in 64 bits, or the flow is no number of 64 bits.
        """
        found = done_fit(lambda: {"flow": self._flow(choices)}, "the score synflow")["flow"]
        if not math.isfinite(found):
            raise ConfigError(
                f"score synflow: expected a flow that 64 bits hold, found {found} for subnet "
                f"{','.join(map(str, choices))}; use another score for networks as deep as this"
            )
        return math.log(found) if found else -math.inf

    def _flow(self, choices: Sequence[int]) -> float:
        self.check(choices)
        ones = {
            name: torch.ones_like(self._batch[name][:1], dtype=torch.float64)
            for name in self._layers.fields(choices)
        }
        with deterministic_torch(self._threads), torch.enable_grad():
            weights = _weights_of(self._layers.modules(choices))
            with _WithoutNorms():
                outputs = self._layers.forward(choices, ones)
            total = torch.stack([each.sum() for each in outputs if each.requires_grad] or [_ZERO])
            if not weights or not total.requires_grad:
                return 0.0
            gradients = torch.autograd.grad(total.sum(), weights, allow_unused=True)
            return _flow_through(weights, gradients)


_ZERO = torch.zeros((), dtype=torch.float64)


def _make_positive(module: nn.Module) -> None:
    """In 64 bits, absolute, and without a trace of training mode."""
    module.double().eval()
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            if tensor.is_floating_point():
                tensor.abs_()
        for parameter in module.parameters():
            parameter.requires_grad_(parameter.is_floating_point())


def _weights_of(modules: Sequence[nn.Module]) -> list[nn.Parameter]:
    """Those of products and convolutions: norms' and biases have one dimension."""
    return [each for module in modules for each in module.parameters() if each.dim() > 1]


def _flow_through(
    weights: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor | None]
) -> float:
    flows = [
        float((weight.detach() * gradient).abs().sum())
        for weight, gradient in zip(weights, gradients, strict=True)
        if gradient is not None
    ]
    return sum(flows)


class _WithoutNorms(TorchFunctionMode):
    """Has every norm of torch's return its input."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        if func in _NORMS:
            return args[0] if args else given["input"]
        return func(*args, **given)
