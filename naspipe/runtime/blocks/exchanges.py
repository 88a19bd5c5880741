"""What stages tell one another of a step before its WRITEs, and what that does to gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from naspipe.config.ids import LayerId, StageId, StreamId
from naspipe.config.recipe import Recipe
from naspipe.config.steps import Steps
from naspipe.runtime.blocks.ports import Exchange
from naspipe.runtime.devices.device_waits import Wait, on_host
from naspipe.runtime.layers.bound_layer import Gradients
from naspipe.stage.builder import GATES
from naspipe.stage.gates import NORMS
from naspipe.stage.ports import WriteGate

SMALLEST = 1e-6
"""Added to a norm before it divides, as by ``torch.nn.utils.clip_grad_norm_``."""


def clip_factor(norms: Sequence[float], limit: float) -> float:
    """What gradients are multiplied by so that the norm of all of them is at most ``limit``.

    If a norm is NaN, the factor is ``math.nan``. The sign of a NaN that Python's arithmetic
    computes from two others depends on how often the interpreter has executed the line.
    """
    total = 0.0
    for norm in norms:
        total += norm * norm
    return math.nan if math.isnan(total) else limit / (math.sqrt(total) + SMALLEST)


class NormExchange:
    """``clip_global_norm``: every stage tells its layers' norms, and works the same total out.

    Args:
        recipes: of each stream.
    """

    def __init__(self, recipes: Sequence[Recipe]) -> None:
        self._recipes = tuple(recipes)

    def contribution(
        self, stream: StreamId, gradients: Mapping[LayerId, Gradients]
    ) -> Mapping[str, float]:
        """The norm of each layer's gradients: torch's, of its parameters in their order."""
        layers = [layer for layer in sorted(gradients) if gradients[layer]]
        norms = [
            torch.nn.utils.get_total_norm(list(gradients[layer].values())).double()
            for layer in layers
        ]
        found: list[float] = on_host(torch.stack(norms), Wait.NORM).tolist() if norms else []
        # The names rise as block and candidate do.
        names = [f"{layer.block:08d}.{layer.candidate:08d}" for layer in layers]
        return dict(zip(names, found, strict=True))

    def apply(
        self,
        layer: LayerId,
        gradients: Gradients,
        contributions: Mapping[StageId, Mapping[str, Any]],
    ) -> None:
        """Scale a layer's gradients so that the norm of all of the step's is at most the limit.

        The squares of the layers' norms are summed in the order of block and candidate, as
        float64.
        """
        norms = {name: norm for told in contributions.values() for name, norm in told.items()}
        limit = self._recipes[layer.stream].clip_global_norm
        factor = clip_factor([norms[name] for name in sorted(norms)], limit)
        if not factor >= 1.0:  # also where the norm is not a number
            for gradient in gradients.values():
                gradient.mul_(factor)


EXCHANGES: dict[str, Callable[[Sequence[Recipe]], Exchange]] = {NORMS: NormExchange}
"""What stages exchange, by the names of :data:`naspipe.stage.builder.GATES`; each is given the
recipe of every stream."""


def register_exchange(
    name: str,
    gate: Callable[[Steps], WriteGate],
    effect: Callable[[Sequence[Recipe]], Exchange],
) -> None:
    """Let WRITEs wait for an exchange by its name: when, and what it does."""
    GATES[name] = gate
    EXCHANGES[name] = effect
