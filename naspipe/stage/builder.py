"""The only place where names become classes: policies and dispatch orders."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from naspipe.core.errors import ConfigError
from naspipe.core.ids import StageId
from naspipe.core.ports import DispatchOrder, SyncPolicy
from naspipe.core.rules import Rule
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
    starts_partly_clear: bool = False,
) -> StageController:
    """Make a stage's controller from names.

    Raises:
        ConfigError: for a name that is not registered.
    """
    for what, name, known in (("policy", policy, POLICIES), ("order", order, ORDERS)):
        if name not in known:
            raise ConfigError(f"unknown {what} {name!r}: expected {' or '.join(known)}")
    return StageController(stage, rules, POLICIES[policy](), ORDERS[order](), starts_partly_clear)
