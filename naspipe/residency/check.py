"""The least device memory that a stage can run with."""

from __future__ import annotations

from naspipe.config.errors import ConfigError

_LEAST_MEANT, _FEW = 1024, 100
"""A budget of fewer bytes has lost its unit: a large one, where there are few of it."""


def check_budget(budget_bytes: int, permanent_bytes: int, largest_bytes: int) -> None:
    """Check that every layer of a stage can be made resident, one at a time if need be.

    Args:
        budget_bytes: what the stage's layers may occupy on the device.
        permanent_bytes: all of the stage's shared layers, with their optimizer state.
        largest_bytes: the largest of its other layers, with its optimizer state.

    Raises:
        ConfigError: when the budget is below the sum of the two.
    """
    least_bytes = permanent_bytes + largest_bytes
    if budget_bytes < least_bytes:
        meant = f"{budget_bytes}{'GiB' if budget_bytes < _FEW else 'MiB'}"
        hint = f"; write a unit, as in {meant}" if budget_bytes < _LEAST_MEANT else ""
        raise ConfigError(
            f"memory budget: expected at least {least_bytes} bytes per stage ({permanent_bytes} "
            f"for its shared layers and {largest_bytes} for its largest layer, optimizer state "
            f"included), found {budget_bytes}{hint}"
        )
