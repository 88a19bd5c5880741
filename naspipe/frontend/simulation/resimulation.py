"""A recorded run simulated again, from its directory alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from naspipe.core.access import Access
from naspipe.core.config import Execution
from naspipe.core.errors import ConfigError
from naspipe.core.ids import SequenceId, StreamId
from naspipe.core.partition import Partition, make_partition
from naspipe.core.planned import Planned
from naspipe.core.settings.declare import declared
from naspipe.core.steps import recorded_steps
from naspipe.core.subnet import Subnet
from naspipe.planning.cost import CostTable
from naspipe.sim.chains import Chain, Stream
from naspipe.sim.fidelity import Fidelity, LoggedCosts, compare_to_real, logged_costs
from naspipe.sim.pipeline import Pipeline, Plan, StreamPlan, by_critical_path
from naspipe.sim.ports import Costs
from naspipe.sim.simulation import SimulatedRun, simulate_run
from naspipe.streams.from_file import read_stream
from naspipe.trace.access.labels import SpaceLabels
from naspipe.trace.reading.compare import RecordedRun


def simulate_again(path: Path) -> Fidelity:
    """Simulate a recorded run with what each of its accesses took, and compare the two.

    Raises:
        ConfigError: when the path is no run directory, or not one that can be imitated.
        LogError: when its log is damaged.
    """
    recorded = RecordedRun(path)
    costs = logged_costs_of(recorded)
    return simulate_again_with(recorded, costs, costs.table)


def logged_costs_of(recorded: RecordedRun) -> LoggedCosts:
    """What each access of a recorded run took.

    Raises:
        ConfigError: when there is no log.
    """
    if not recorded.accesses:
        raise ConfigError(f"{recorded.path}: expected an access log to simulate again, found none")
    return logged_costs(recorded.accesses)


def simulate_again_with(recorded: RecordedRun, costs: Costs, table: CostTable) -> Fidelity:
    """Compare a recorded run to its simulation under other costs: see :func:`simulated_again`."""
    simulated = simulated_again(recorded, costs, table)
    return compare_to_real(recorded.accesses, simulated.accesses, recorded.num_stages)


def simulated_again(recorded: RecordedRun, costs: Costs, table: CostTable) -> SimulatedRun:
    """The run's stream, partitions, order and window under other costs.

    Args:
        recorded: a run without a memory budget; its log says which stage ran what.
        costs: what everything takes.
        table: the costs that its priorities followed, where its order is critical-path.

    Raises:
        ConfigError: for a run of several streams, with a memory budget, or of no accesses.
    """
    manifest, labels = recorded.manifest, recorded.labels
    execution = _execution(manifest.get("execution", {}), recorded.path)
    chain = Chain(rules=labels.rules, is_shared=labels.is_shared)
    subnets = _subnets(recorded.directory.stream, labels)
    partitions = _partitions(recorded.accesses, len(subnets), len(labels), recorded.path)
    definition = manifest.get("definition", {})
    pipeline = Pipeline(
        streams=(Stream(chain, tuple(subnets), table),),
        policy=definition.get("policy", "csp"),
        bulk=definition.get("bulk") or execution.pipeline.stages,
        steps=recorded_steps(definition.get("recipe", {})),
    )
    planned = tuple(map(Planned, subnets, partitions))
    plan = Plan((StreamPlan(planned),), execution.pipeline.order, execution.pipeline.window)
    if execution.pipeline.order == "critical-path":
        plan = by_critical_path(plan, pipeline)
    return simulate_run(pipeline, plan, execution, costs)


def _execution(values: Mapping[str, Any], path: Path) -> Execution:
    known = declared(Execution)
    execution = Execution(**{key: value for key, value in values.items() if key in known})
    if execution.memory.budget:
        raise ConfigError(
            f"{path}: expected a run without a memory budget, found {execution.memory.budget!r}; "
            f"the log does not say how long each copy took"
        )
    if values.get("streams", 1) != 1:
        raise ConfigError(
            f"{path}: expected a run that had the pipeline to itself, found {values['streams']} "
            f"streams side by side"
        )
    return execution


def _subnets(path: Path, labels: SpaceLabels) -> list[Subnet]:
    subnets = []
    for number, choices in enumerate(read_stream(path)):
        left = iter(choices)
        chain = tuple(0 if is_shared else next(left) for is_shared in labels.is_shared)
        subnets.append(Subnet(StreamId(0), SequenceId(number), chain))
    return subnets


def _partitions(
    accesses: Sequence[Access], num_subnets: int, num_blocks: int, path: Path
) -> list[Partition]:
    """Which stage ran each block of each subnet."""
    stages: list[list[int]] = [[-1] * num_blocks for _ in range(num_subnets)]
    for access in accesses:
        if access.layer.stream or access.sequence_id >= num_subnets:
            raise ConfigError(f"{path}: expected accesses of one stream, found {access}")
        stages[access.sequence_id][access.layer.block] = access.stage
    known: dict[tuple[int, ...], Partition] = {}
    partitions = []
    for number, row in enumerate(stages):
        if min(row) < 0:
            raise ConfigError(f"{path}: expected a whole run, found subnet {number} unfinished")
        bounds = (*(row.index(stage) for stage in range(max(row) + 1)), num_blocks)
        partitions.append(known.setdefault(bounds, make_partition(bounds)))
    return partitions
