"""A recorded run simulated again, from its directory alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from naspipe.config.definition import Execution
from naspipe.config.errors import ConfigError
from naspipe.config.ids import Access, AccessKind, LayerId, Subnet
from naspipe.config.partition import Partition, partition_along
from naspipe.config.settings import declared
from naspipe.config.steps import Steps, recorded_steps
from naspipe.core.events import Planned
from naspipe.planning.cost import COLUMNS, CostTable
from naspipe.planning.window import plan_window
from naspipe.sim.chains import Chain, Stream
from naspipe.sim.fidelity import Fidelity, LoggedCosts, compare_to_real, logged_costs
from naspipe.sim.pipeline import RANKINGS, Pipeline, Plan, StreamPlan
from naspipe.sim.ports import Costs
from naspipe.sim.simulation import SimulatedRun, simulate_run
from naspipe.streams.from_file import read_stream
from naspipe.trace.access.labels import SpaceLabels
from naspipe.trace.reading.compare import RecordedRun
from naspipe.trace.results.costs_file import read_costs


def simulate_again(path: Path) -> Fidelity:
    """Simulate a recorded run with what each of its accesses took, and compare the two.

    Raises:
        ConfigError: when the path is no run directory, or not one that can be imitated.
        LogError: when its log is damaged.
    """
    recorded = RecordedRun(path)
    costs = logged_costs_of(recorded)
    return simulate_again_with(recorded, costs, _planned_costs(recorded) or costs.table)


def _planned_costs(recorded: RecordedRun) -> CostTable | None:
    """What the run's plan took layers to cost; None where it followed no costs."""
    path = recorded.directory.costs
    rows = read_costs(path, COLUMNS)
    if rows is None:
        return None
    lacking = set(range(len(recorded.labels))) - {row[0] for row in rows}
    if lacking:
        raise ConfigError(
            f"{path}: expected costs of every block, found none of block {min(lacking)}; without "
            f"the file they are taken from the log"
        )
    return CostTable.of_rows(rows)


def logged_costs_of(recorded: RecordedRun) -> LoggedCosts:
    """What each access of a recorded run took.

    Raises:
        ConfigError: when there is no log.
    """
    if not recorded.accesses:
        raise ConfigError(f"{recorded.path}: expected an access log to simulate again, found none")
    recipe = recorded.manifest.get("definition", {}).get("recipe", {})
    accesses, labels = recorded.accesses, recorded.labels
    if labels.has_settings:
        subnets = _subnets(recorded.directory.stream, labels)
        accesses = [_by_option(access, subnets[access.sequence_id]) for access in accesses]
    return logged_costs(accesses, recorded_steps(recipe))


def _by_option(access: Access, subnet: Subnet) -> Access:
    """An access as costs have it: by its option, unless it is a WRITE, which all have in common."""
    if access.kind is AccessKind.WRITE:
        return access
    option = subnet.chain[access.layer.block]
    return access._replace(layer=access.layer._replace(candidate=option))


def simulate_again_with(recorded: RecordedRun, costs: Costs, table: CostTable) -> Fidelity:
    """Compare a recorded run to its simulation under other costs: see :func:`simulated_again`."""
    simulated = simulated_again(recorded, costs, table)
    return compare_to_real(recorded.accesses, simulated.accesses, recorded.num_stages)


def simulated_again(recorded: RecordedRun, costs: Costs, table: CostTable) -> SimulatedRun:
    """The run's stream, partitions, order and window under other costs.

    Args:
        recorded: a run without a memory budget; its log says which stage ran what.
        costs: what everything takes.
        table: the costs that its priorities followed, where its order has any.

    Raises:
        ConfigError: for a run of several streams, with a memory budget, or of no accesses.
    """
    manifest, labels = recorded.manifest, recorded.labels
    execution = _execution(manifest.get("execution", {}), recorded.path)
    definition = manifest.get("definition", {})
    steps = recorded_steps(definition.get("recipe", {}))
    ordered = ordered_in(recorded.accesses, steps)
    chain = Chain(rules=labels.rules, is_shared=labels.stays, buffered=ordered)
    subnets = _subnets(recorded.directory.stream, labels)
    partitions = _partitions(recorded.accesses, len(subnets), len(labels), recorded.path)
    pipeline = Pipeline(
        streams=(Stream(chain, tuple(subnets), table),),
        policy=definition.get("policy", "csp"),
        bulk=definition.get("bulk") or execution.pipeline.stages,
        steps=steps,
    )
    planned = tuple(map(Planned, subnets, partitions))
    way = execution.pipeline
    window = plan_window(execution, steps, 0)
    plan = Plan((StreamPlan(planned),), way.order, window, buffered=pipeline.buffered)
    if way.order in RANKINGS:
        plan = RANKINGS[way.order](plan, pipeline)
    return simulate_run(pipeline, plan, execution, costs)


def ordered_in(accesses: Sequence[Access], steps: Steps) -> frozenset[tuple[int, int]]:
    """Layers that the passes of every step went through one after the other, in their order.

    Those whose forwards leave something for the next one are among them.
    """
    last: dict[tuple[LayerId, int], Access] = {}
    swapped: set[LayerId] = set()
    forwards = [
        access
        for access in accesses
        if access.kind is AccessKind.FORWARD and not steps.is_probe(access.sequence_id)
    ]
    for access in sorted(forwards, key=lambda each: each.sequence_id):
        place = (access.layer, steps.step(access.sequence_id))
        before = last.get(place)
        if before is not None and access.start_ns < before.end_ns:
            swapped.add(access.layer)
        last[place] = access
    found = {access.layer for access in forwards} - swapped
    return frozenset((layer.block, layer.candidate) for layer in found)


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
    return [labels.subnet(number, choices) for number, choices in enumerate(read_stream(path))]


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
    num_stages = 1 + max(map(max, stages))
    partitions = []
    for number, row in enumerate(stages):
        if min(row) < 0:
            raise ConfigError(f"{path}: expected a whole run, found subnet {number} unfinished")
        partitions.append(known.setdefault(tuple(row), partition_along(row, num_stages)))
    return partitions
