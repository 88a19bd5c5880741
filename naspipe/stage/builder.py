"""The only place where names become classes: policies, their admission, and dispatch orders."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from naspipe.core.errors import ConfigError
from naspipe.core.ids import StageId
from naspipe.core.ports import Admission, DispatchOrder, Residency, SyncPolicy
from naspipe.core.rules import Rule
from naspipe.core.steps import ONE_PASS, Steps
from naspipe.residency.all_resident import AllResident
from naspipe.schedule.asp import AsynchronousPolicy
from naspipe.schedule.bsp import BulkPolicy
from naspipe.schedule.csp import CausalPolicy
from naspipe.schedule.dispatch_order import CriticalPathOrder, PaperOrder, StreamsCriticalPathOrder
from naspipe.schedule.history import History
from naspipe.stage.admission import AdmissionWindow, BulkAdmission
from naspipe.stage.controller import StageController
from naspipe.stage.gates import OpenGate, StepGate
from naspipe.stage.step_admission import StepAdmission

POLICIES: dict[str, Callable[[int, Steps], SyncPolicy]] = {
    "csp": lambda bulk, steps: CausalPolicy(steps),
    "bsp": lambda bulk, steps: BulkPolicy(bulk),
    "asp": lambda bulk, steps: AsynchronousPolicy(),
    "sequential": lambda bulk, steps: CausalPolicy(steps),
}
"""Synchronisation policies; they are given the size of a bulk, and how passes form steps."""

ORDERS: dict[str, Callable[[int], DispatchOrder]] = {
    "paper": lambda streams: PaperOrder(),
    "critical-path": lambda streams: (
        CriticalPathOrder() if streams == 1 else StreamsCriticalPathOrder()
    ),
}
"""Dispatch orders; they are given how many streams share the pipeline."""


def build_policy(policy: str, bulk: int = 1, steps: Steps = ONE_PASS) -> SyncPolicy:
    """A synchronisation policy by name.

    Raises:
        ConfigError: for a name that is not registered, or one that takes no such steps.
    """
    if policy not in POLICIES:
        raise ConfigError(f"unknown policy {policy!r}: expected {' or '.join(POLICIES)}")
    if steps != ONE_PASS and policy not in ("csp", "sequential"):
        raise ConfigError(
            f"policy {policy}: expected csp or sequential with steps of several passes and with "
            f"clip_global_norm; what a step is means nothing to the others"
        )
    return POLICIES[policy](bulk, steps)


def build_controller(
    stage: StageId,
    rules: Sequence[Sequence[Rule]],
    *,
    policy: str = "csp",
    bulk: int = 1,
    order: str = "paper",
    residency: Residency | None = None,
    starts_partly_clear: bool = False,
    history: History | None = None,
    steps: Steps = ONE_PASS,
) -> StageController:
    """Make a stage's controller from names; without a ``residency`` every layer is on the device.

    Args:
        stage: which one.
        rules: of each stream, the rule of each block of its chain.
        policy: ``csp``, ``bsp``, ``asp`` or ``sequential``.
        bulk: subnets that ``bsp`` trains at the same versions.
        order: ``paper`` or ``critical-path``.
        residency: what is on the device.
        starts_partly_clear: begin a forward before all of the stage's blocks are clear.
        history: shared by the stages of one process; by default one for this stage alone.
        steps: how passes form steps, in every stream.

    Raises:
        ConfigError: for a name that is not registered.
    """
    if order not in ORDERS:
        raise ConfigError(f"unknown order {order!r}: expected {' or '.join(ORDERS)}")
    return StageController(
        stage,
        history or History.of(rules, [stage]),
        build_policy(policy, bulk, steps),
        ORDERS[order](len(rules)),
        residency or AllResident(),
        StepGate(steps) if steps.is_gated else OpenGate(),
        starts_partly_clear,
    )


def build_admission(
    policy: str,
    num_subnets: int,
    *,
    window: int,
    bulk: int = 1,
    stages: int = 1,
    first: int = 0,
    passes: int = 1,
) -> Admission:
    """Which subnets of a stream may be under way on a stage.

    ``asp`` has as many under way as there are stages, which is what its one-forward-
    one-backward schedule needs (PipeDream, section 3.2); ``sequential`` has one. ``first`` is the
    sequence ID to begin with. Steps of several ``passes`` are admitted whole.
    """
    if passes > 1:
        return StepAdmission(passes, 1 if policy == "sequential" else window, num_subnets, first)
    match policy:
        case "bsp":
            return BulkAdmission(bulk, num_subnets, first)
        case "asp":
            return AdmissionWindow(stages, num_subnets, first)
        case "sequential":
            return AdmissionWindow(1, num_subnets, first)
    return AdmissionWindow(window, num_subnets, first)
