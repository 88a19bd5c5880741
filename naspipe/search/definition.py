"""Everything that the subnets and scores of a search depend on, beside the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from naspipe.config.errors import ConfigError
from naspipe.search.limits import Limits
from naspipe.search.scores import check_score


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchDefinition:
    """How subnets are proposed and judged; never how many stages evaluate them."""

    strategy: str = "evolution"
    options: Mapping[str, float] = field(default_factory=dict)
    """Of the strategy, such as ``population``."""
    budget: int = 100
    """Subnets to evaluate."""
    seed: int = 0
    """Of the strategy's draws."""
    delay: int = 8
    """Subnets from one to the first that knows its score; up to one more are under way."""
    score: str = "loss"
    """What subnets are ranked by: one of :data:`naspipe.search.scores.SCORES`, or a sum of them."""
    calibration: int = 4
    """Batches of the training split that running statistics are taken from; 0 for the run's own."""
    validation: int = 8
    """Batches of the held-out split."""
    ema: bool = False
    """Judge by the moving averages of the weights."""
    limits: Limits = field(default_factory=Limits)
    data: Mapping[str, Any] = field(default_factory=dict)
    """What the held-out data say of themselves."""
    loss: str = ""
    """What subnets are judged by in the place of the run's loss."""

    def __post_init__(self) -> None:
        if not isinstance(self.strategy, str):
            raise ConfigError(
                f"strategy: expected a name, of which every block's search makes its own, found an "
                f"object, {type(self.strategy).__name__}"
            )
        least = {"budget": 1, "seed": 0, "delay": 0, "calibration": 0, "validation": 1}
        names = {"calibration": "calibrate", "validation": "validate"}
        for name, smallest in least.items():
            if (found := getattr(self, name)) < smallest:
                option = names.get(name, name)
                raise ConfigError(f"--{option}: expected {smallest} or more, found {found}")
        check_score(self.score)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for the manifest."""
        return asdict(self)
