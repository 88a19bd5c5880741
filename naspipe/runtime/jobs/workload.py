"""What is computed in a run: a space, its data, its loss, and the definition that names them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from naspipe.core.config import Definition, Recipe
from naspipe.core.rules import Rule
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

    @classmethod
    def of(
        cls, space: Space, data: Batches, loss: Loss, *, recipe: Recipe, **identity: Any
    ) -> Workload:
        """A workload by what it is made of; ``identity`` as in :func:`define`."""
        definition = define(space, data, loss, recipe=recipe, **identity)
        return cls(space=space, data=data, loss=loss, definition=definition)

    def redefined(self, rules: Mapping[str, Rule] | None = None, **changes: Any) -> Workload:
        """The same space, data and loss under another definition.

        Args:
            rules: of shared layers, in the place of the space's own.
            changes: fields of the definition.

        Raises:
            ConfigError: for a rule of a layer that the space does not share, or a field's value
                that cannot be.
        """
        space = self.space.with_rules(rules) if rules else self.space
        definition = replace(self.definition, rules=_texts(space), **changes)
        return replace(self, space=space, definition=definition)

    @property
    def recipe(self) -> Recipe:
        """How every step is taken."""
        return self.definition.recipe

    @property
    def objective(self) -> Loss:
        """The loss as the recipe changes it.

        Raises:
            ConfigError: when it cannot be changed so.
        """
        return smoothed(self.loss, self.definition.recipe.label_smoothing)


def define(
    space: Space, data: Batches, loss: Loss, *, recipe: Recipe, **identity: Any
) -> Definition:
    """The definition of a run; ``identity`` is its steps, seed, sampler, scale and policy."""
    return Definition(
        space=space.name,
        data=dict(getattr(data, "record", None) or {"name": _name_of(data)}),
        loss=_name_of(loss),
        recipe=recipe,
        rules=_texts(space),
        **identity,
    )


def _texts(space: Space) -> dict[str, str]:
    return {name: str(rule) for name, rule in space.shared_rules.items()}


def _name_of(thing: object) -> str:
    """A readable name of a callable, free of addresses."""
    named = thing if hasattr(thing, "__qualname__") else type(thing)
    return f"{getattr(named, '__module__', '')}.{getattr(named, '__qualname__', '')}"
