"""The only place where names become classes: policies and dispatch orders."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from naspipe.core.errors import ConfigError
from naspipe.core.ids import StageId
from naspipe.core.ports import DispatchOrder, Residency, SyncPolicy
from naspipe.core.rules import Rule
from naspipe.residency.all_resident import AllResident
from naspipe.schedule.csp import CausalPolicy
from naspipe.schedule.order import CriticalPathOrder, PaperOrder
from naspipe.stage.controller import StageController

POLICIES: dict[str, Callable[[], SyncPolicy]] = {"csp": CausalPolicy}
ORDERS: dict[str, Callable[[], DispatchOrder]] = {
    "paper": PaperOrder,
    "critical-path": CriticalPathOrder,
}


def build_controller(
    stage: StageId,
    rules: Sequence[Rule],
    *,
    policy: str = "csp",
    order: str = "paper",
    residency: Residency | None = None,
    starts_partly_clear: bool = False,
) -> StageController:
    """Make a stage's controller from names; without a ``residency`` every layer is on the device.

    Raises:
        ConfigError: for a name that is not registered.
    """
    for what, name, known in (("policy", policy, POLICIES), ("order", order, ORDERS)):
        if name not in known:
            raise ConfigError(f"unknown {what} {name!r}: expected {' or '.join(known)}")
    return StageController(
        stage,
        rules,
        POLICIES[policy](),
        ORDERS[order](),
        residency or AllResident(),
        starts_partly_clear,
    )
