"""Values outside of layers and losses that these read: they must stay while a run goes on.

Each stage is a process with its own copy of them, so what an observer or a metric changes is
changed in one place, and not at the step that a plain loop would change it at.
"""

from __future__ import annotations

from collections.abc import Sequence

from naspipe.core.errors import ConfigError
from naspipe.runtime.jobs.reached_code import outside_values
from naspipe.runtime.jobs.workload import Workload


class SteadyValues:
    """What losses and layers of some streams read, as it is now."""

    def __init__(self, workloads: Sequence[Workload]) -> None:
        trained = [workload for workload in workloads if workload.is_trained]
        layers = [
            factory for each in trained for block in each.space.blocks
            for factory in block.candidates
        ]  # fmt: skip
        self._roots = [*layers, *(each.loss for each in trained)]
        self._first = outside_values(self._roots)

    def changed(self) -> str:
        """What has another value since, with both; empty for nothing."""
        now = outside_values(self._roots) if self._first else {}
        for name, was in self._first.items():
            if name in now and now[name] != was:
                return f"{name}, which was {was:.60} and is {now[name]:.60}"
        return ""

    def check(self, who: str) -> None:
        """Nothing may have changed.

        Args:
            who: how the message begins.

        Raises:
            ConfigError: naming the first value that did.
        """
        if found := self.changed():
            raise ConfigError(
                f"{who} changes {found}, that a layer or the loss reads: each stage has a copy of "
                f"its own, so the bits would depend on the number of stages; hand over what "
                f"changes from step to step as a field of the batch, as data(seed, step) makes it"
            )
