"""What is computed in a run: a space, its data, its loss, and the definition that names them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from naspipe.core.config import Definition
from naspipe.core.space import Space
from naspipe.runtime.jobs.losses import Loss, smoothed
from naspipe.streams.feedback import ExplorationStrategy

Batches = Callable[[int, int], Mapping[str, torch.Tensor]]
"""The whole data protocol: (seed, sequence ID) -> named tensors, batch dimension first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is computed: the space, its data and loss, and the definition that names them."""

    space: Space
    data: Batches
    loss: Loss
    definition: Definition
    recompute: bool = False
    make_strategy: Callable[[], ExplorationStrategy] | None = None
    """Makes the strategy that proposes the stream, where one does; anew for each life of a run."""
    held_out: Batches | None = None
    """Batches that nothing is trained on, where the run is validated on the way."""

    @property
    def objective(self) -> Loss:
        """The loss as the recipe changes it.

        Raises:
            ConfigError: when it cannot be changed so.
        """
        return smoothed(self.loss, self.definition.recipe.label_smoothing)
