"""The only place that maps names to classes: policies, their admission, and dispatch orders."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from naspipe.config.errors import ConfigError
from naspipe.config.execution import ORDERS as ORDER_NAMES
from naspipe.config.ids import LayerId, StageId
from naspipe.config.rules import BlockRule, untrained
from naspipe.config.steps import ONE_PASS, Steps
from naspipe.config.wiring import PLAIN, Wiring
from naspipe.engine.admission import Absence, AdmissionWindow, BulkAdmission, StepAdmission
from naspipe.engine.controller import StageController
from naspipe.engine.gates import NORMS, EndLaunch, PartitionLaunch, StepGate, WriteGate
from naspipe.engine.history import History, Uses, Whereabouts
from naspipe.engine.orders import (
    CriticalPathOrder,
    LatestStartOrder,
    PaperOrder,
    RankedOrder,
    ReadyTasks,
    StreamsCriticalPathOrder,
)
from naspipe.engine.policies import (
    AsynchronousPolicy,
    BulkPolicy,
    CausalPolicy,
    SyncPolicy,
    causal_policies,
    traits_of,
)
from naspipe.engine.ports import DispatchOrder
from naspipe.engine.residency import Residency

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
    "latest-start": lambda streams: LatestStartOrder(),
}
"""Dispatch orders; they are given the number of streams that share the pipeline."""

MakesReadyTasks = Callable[[DispatchOrder, Sequence[int], Wiring, Steps], ReadyTasks]
"""Makes the ready tasks of a stage, given the order, the number of blocks of each stream's chain,
how the streams that the stage takes part in are connected, and how passes form steps."""

READY_TASKS: dict[str, MakesReadyTasks] = {}
"""Ready tasks of dispatch orders that hold back runnable tasks, by the order's name."""

GATES: dict[str, Callable[[Steps], WriteGate]] = {NORMS: StepGate}
"""Gates that WRITEs can be made to wait for, by the exchange that a gate is named after."""

LAUNCHES: dict[str, tuple[Callable[[Steps], WriteGate], ...]] = {
    "layer": (),
    "partition": (PartitionLaunch,),
    "end": (EndLaunch,),
}
"""What the sums of a step wait for in addition to their layer's last pass, by
``reduction_launch``."""


def register_order(
    name: str, make: Callable[[int], DispatchOrder], ready: MakesReadyTasks | None = None
) -> None:
    """Make a dispatch order selectable by name; see :data:`ORDERS`."""
    ORDERS[name] = make
    READY_TASKS.pop(name, None)
    if ready is not None:
        READY_TASKS[name] = ready
    if name not in ORDER_NAMES:
        ORDER_NAMES.append(name)


def build_policy(policy: str, bulk: int = 1, steps: Steps = ONE_PASS) -> SyncPolicy:
    if policy not in POLICIES:
        raise ConfigError(f"unknown policy {policy!r}: expected {' or '.join(POLICIES)}")
    if steps != ONE_PASS and not traits_of(policy).takes_steps:
        raise ConfigError(
            f"policy {policy}: expected {causal_policies()} with steps of several passes and with "
            f"clip_global_norm; what a step is means nothing to the others"
        )
    return POLICIES[policy](bulk, steps)


def build_controller(
    stage: StageId,
    rules: Sequence[Sequence[BlockRule]],
    *,
    residency: Residency | None = None,
    history: History | None = None,
    policy: str = "csp",
    bulk: int = 1,
    order: str = "paper",
    starts_partly_clear: bool = False,
    steps: Steps = ONE_PASS,
    wiring: Wiring = PLAIN,
    buffered: Collection[LayerId] | None = None,
    streams: Collection[int] | None = None,
    reduction_launch: str = "layer",
    splits: bool = False,
) -> StageController:
    """Make a stage's controller from names; without a ``residency`` every layer is on the device.

    Args:
        stage: the stage's number.
        rules: for each stream, the rule of each block of its chain.
        residency: which layers are on the device.
        history: shared by the stages of one process; by default one for this stage alone.
        policy: one of :data:`POLICIES`.
        bulk: number of subnets that ``bsp`` trains at the same versions.
        order: one of :data:`ORDERS`.
        starts_partly_clear: begin a forward before all of the stage's blocks are clear.
        steps: how passes form steps, in every stream.
        wiring: how the streams are connected.
        buffered: layers whose forwards leave buffers for the next one; None for all.
        streams: the streams that the stage takes part in; None for all.
        reduction_launch: when sums of gradients are sent to the next group; see :data:`LAUNCHES`.
        splits: backwards may be split, so that a WRITE first computes the gradients that one has
            left.

    Raises:
        ConfigError: if a name is not registered, or a stream does not have the given blocks.
    """
    if order not in ORDERS:
        raise ConfigError(f"unknown order {order!r}: expected {' or '.join(ORDERS)}")
    if unknown := [name for name in wiring.exchanges if name not in GATES]:
        raise ConfigError(f"unknown exchange {unknown[0]!r}: expected {' or '.join(GATES)}")
    ranks = [wiring.of(stream).rank for stream in range(len(rules))]
    dispatch = ORDERS[order](len(rules))
    if any(ranks) or not all(wiring.of(stream).is_trained for stream in range(len(rules))):
        dispatch = RankedOrder(dispatch, ranks)
    lengths = list(map(len, rules))
    completed = wiring.completed(lengths, steps)
    completed = completed.among(range(len(rules)) if streams is None else streams)
    if (ready := READY_TASKS.get(order)) is not None:
        tasks = ready(dispatch, lengths, completed, steps)
    else:
        tasks = ReadyTasks(dispatch, starts_partly_clear)
    gated = (*((NORMS,) if steps.is_gated else ()), *wiring.exchanges)
    launches = LAUNCHES[reduction_launch] if steps.passes > 1 else ()
    return StageController(
        stage,
        history or new_history(rules, wiring, [stage], steps, buffered),
        build_policy(policy, bulk, steps),
        tasks,
        residency or Residency(),
        [make(steps) for make in (*(GATES[name] for name in gated), *launches)],
        completed,
        splits,
    )


def new_history(
    rules: Sequence[Sequence[BlockRule]],
    wiring: Wiring = PLAIN,
    asking: Collection[StageId] | None = None,
    steps: Steps = ONE_PASS,
    buffered: Collection[LayerId] | None = None,
) -> History:
    """Make the history that stages share; ``asking`` as in ``Whereabouts``.

    In an untrained stream only layers that follow others change. ``buffered`` holds the layers
    whose forwards leave buffers for the next one; None for all.
    """
    own = [
        [rule if wiring.of(stream).is_trained else untrained(rule) for rule in chain]
        for stream, chain in enumerate(rules)
    ]
    has_buffers = buffered.__contains__ if buffered is not None else lambda layer: True
    uses = Uses(is_shared=asking is None or len(asking) > 1)
    return History(own, Whereabouts(own, asking, steps, has_buffers), uses)


def build_admission(
    policy: str,
    num_subnets: int,
    *,
    window: int,
    bulk: int = 1,
    stages: int = 1,
    first: int = 0,
    steps: Steps = ONE_PASS,
    takes_part: bool = True,
) -> AdmissionWindow:
    """Make a stage's admission of a stream: which of its subnets may be under way.

    ``asp`` has as many under way as there are stages, which is what its one-forward-one-backward
    schedule needs (PipeDream, section 3.2); ``sequential`` has one. ``first`` is the sequence ID to
    begin with. Steps of several passes are admitted whole; their probes, which keep nothing, do not
    count. A stage that does not take part admits none.
    """
    if not takes_part:
        return Absence(num_subnets)
    traits = traits_of(policy)
    under_way = traits.under_way(window, stages)
    if steps.passes > 1:
        return StepAdmission(steps, under_way, num_subnets, first)
    if traits.has_bulks:
        return BulkAdmission(bulk, num_subnets, first)
    return AdmissionWindow(under_way, num_subnets, first)
