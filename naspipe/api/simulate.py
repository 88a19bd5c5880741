"""Scenarios for simulation: a space, the costs of its layers, and streams drawn from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import search_spaces
from naspipe.config.blocks import Shared
from naspipe.config.errors import ConfigError
from naspipe.config.execution import Execution
from naspipe.config.ids import FIRST_STREAM, Access, AccessKind, LayerId, StreamId, Subnet
from naspipe.config.partition import Partition, partition_along
from naspipe.config.recipe import Recipe
from naspipe.config.rules import Rule
from naspipe.config.settings import declared
from naspipe.config.space import Space
from naspipe.config.steps import NO_PROBES, ONE_PASS, Steps, recorded_steps
from naspipe.engine.events import Planned
from naspipe.plan.chains import Chain, Stream
from naspipe.plan.costs import COLUMNS, CostTable, plan_window
from naspipe.plan.fidelity import Fidelity, LoggedCosts, compare_to_real, logged_costs
from naspipe.plan.memory import DeviceSizes, MemoryPlan
from naspipe.plan.pipeline import RANKINGS, Pipeline, Plan, StreamPlan
from naspipe.plan.simulation import Outcome, SimulatedRun, chosen_plan, simulate_run, table_timing
from naspipe.plan.virtual_costs import Costs
from naspipe.store.access_log import AccessLogWriter
from naspipe.store.compare import RecordedRun
from naspipe.store.labels import SpaceLabels, described
from naspipe.store.run_directory import RunDirectory, read_costs
from naspipe.streams.passes import in_passes, num_draws
from naspipe.streams.samplers import draw_subnets
from naspipe.streams.stream_file import read_stream, write_stream
from search_spaces.table5 import table5_costs, table5_sizes, without_shared

if TYPE_CHECKING:
    from naspipe.jobs.workload import Workload

COSTS = ("profiled", "table5")
"""Possible sources of costs."""

DATA_INFO = {
    "vocabulary": 32_000, "padding": 1, "channels": 3, "height": 224, "width": 224,
    "classes": 1000,
}  # fmt: skip
"""Properties of WMT and ImageNet, for simulations without data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A space with known costs of its layers."""

    space: Space
    costs: CostTable
    timing: Callable[[CostTable, Execution, MemoryPlan | None], Costs]
    """Returns all durations, from these costs, an execution and its memory plan."""
    sizes: DeviceSizes | None
    """Bytes of every layer; None if unknown."""
    costs_from: str
    """One of :data:`COSTS`."""
    parameters: Callable[[int, int], int]
    """Number of parameters by block of the chain and candidate; for the sandwich rule."""
    steps: Steps = ONE_PASS
    """How passes form steps."""
    buffered: Callable[[], frozenset[tuple[int, int]]] = frozenset
    """Block and candidate of the layers with buffers."""
    stateless: Callable[[], frozenset[tuple[int, int]]] = frozenset
    """Block and candidate of the layers without parameters and buffers."""
    beside: Callable[[int], dict[str, Any]] | None = None
    """Changed fields if this many workers compute concurrently; None if nothing changes."""

    def on_workers(self, count: int) -> Scenario:
        """Return the scenario with the costs of layers if this many workers compute concurrently.

        Processes on one machine share caches and memory bandwidth, so each is slower than alone.
        """
        return self if self.beside is None else replace(self, **self.beside(count))

    def stepping(self, passes: str, probes: str = NO_PROBES) -> Scenario:
        """Return the scenario with other steps."""
        recipe = Recipe(passes=passes, probes=probes).settled(self.space.drawn_counts)
        return replace(self, steps=recipe.steps)

    def pipeline(
        self,
        sampler: str,
        seed: int,
        steps: int,
        *,
        streams: int = 1,
        policy: str = "csp",
        bulk: int = 1,
    ) -> Pipeline:
        """Draw streams of this space with the seeds ``seed``, ``seed + 1``, ...

        Raises:
            ConfigError: if the sampler does not exist or has too few subnets.
        """
        if steps < 1 or streams < 1:
            raise ConfigError(f"expected 1 or more steps and streams, found {steps} and {streams}")
        buffered = self.buffered() if self.steps.passes > 1 else None
        chain = Chain.of(self.space, buffered, self.stateless())
        space, found = self.space, []
        for number in range(streams):
            drawn = draw_subnets(sampler, space, seed + number, num_draws(self.steps, steps))
            passes = in_passes(drawn, self.steps, space, self.parameters)
            subnets = tuple(
                space.subnet(StreamId(number), place, space.chain(choices))
                for place, choices in enumerate(passes)
            )
            found.append(Stream(chain, subnets, self.costs, is_sample=self.steps.probes > 0))
        return Pipeline(
            streams=tuple(found),
            policy=policy,
            bulk=bulk,
            steps=self.steps,
        )

    def plan(self, pipeline: Pipeline, execution: Execution) -> Plan:
        """Return the plan that a real run of these streams would follow with these costs.

        Raises:
            ConfigError: for more stages than blocks, or a budget below the minimum.
        """

        def timing(pipeline: Pipeline, memory: MemoryPlan | None) -> Costs:
            return self.timing(pipeline.streams[0].costs or self.costs, execution, memory)

        return chosen_plan(pipeline, execution, self.sizes, timing)

    def run(
        self, pipeline: Pipeline, execution: Execution, plan: Plan | None = None
    ) -> SimulatedRun:
        """Simulate streams, by default with the plan of :meth:`plan`."""
        plan = plan or self.plan(pipeline, execution)
        costs = self.costs.split(plan.streams[0].split)
        return simulate_run(pipeline, plan, execution, self.timing(costs, execution, plan.memory))


def profiled_scenario(workload: Workload, execution: Execution) -> Scenario:
    """Return a scenario with the costs of layers on this machine, measured once and cached."""
    from naspipe.api.planning import cores_for, measured_costs, measured_sizes
    from naspipe.inputs.subnet_sources import parameter_counts
    from naspipe.profiling.counts import stateless_layers

    parameters = parameter_counts(workload.space)

    @cache
    def measured(copies: int) -> dict[str, Any]:
        (costs,) = measured_costs([workload], execution, copies)
        return {
            "costs": costs,
            "timing": lambda table, how, memory: table_timing(table, how, memory, parameters),
        }

    return Scenario(
        space=workload.space,
        **measured(1),
        beside=lambda workers: measured(cores_for(workload, execution, workers)),
        sizes=measured_sizes(workload, execution),
        costs_from="profiled",
        parameters=parameters,
        steps=workload.definition.recipe.steps,
        buffered=lambda: _buffered(workload.space, workload.recipe.norms == "deferred"),
        stateless=lambda: stateless_layers(workload.space),
    )


def _buffered(space: Space, defers_norms: bool = False) -> frozenset[tuple[int, int]]:
    from naspipe.checks.sketched import buffered_layers

    return buffered_layers(space, defers_norms)


def table5_scenario(
    name: str,
    *,
    with_shared: bool = True,
    recompute: bool = True,
    recipe: Recipe | None = None,
    rules: Mapping[str, Rule] | None = None,
) -> Scenario:
    """Return a space of naspipe with published layer costs; needs neither torch nor data.

    Args:
        name: one of :func:`search_spaces.names`.
        with_shared: keep the embeddings, the stem and the head; the paper freezes them.
        recompute: count each forward twice, as the paper does.
        recipe: defines how passes form steps.
        rules: of shared layers, instead of the space's.

    Raises:
        ConfigError: if the table does not have the space or a layer.
    """
    if ":" in name:
        raise ConfigError(
            f"{name}: expected one of {', '.join(search_spaces.names())}, as Table 5 lists their "
            f"layers; use --costs profiled for a space of your own"
        )
    space = search_spaces.build(name, "paper", DATA_INFO).with_rules(rules or {})
    if not with_shared:
        space = without_shared(space)
    costs, sizes = table5_costs(space, recompute), table5_sizes(space)
    return Scenario(
        space=space,
        costs=costs.table,
        timing=lambda table, how, memory: replace(costs, table=table),
        sizes=DeviceSizes(sizes, space.rules),
        costs_from="table5",
        parameters=lambda *layer: sizes.of(*layer).parameter_bytes,
        steps=(recipe or Recipe()).settled(space.drawn_counts).steps,
        buffered=lambda: _buffered(space),
    )


def simulate_again(path: Path) -> Fidelity:
    """Simulate a recorded run with the time of each of its accesses, and compare the two.

    Raises:
        ConfigError: if the path is not a run directory, or the run cannot be simulated.
        LogError: if its log is damaged.
    """
    recorded = RecordedRun(path)
    costs = logged_costs_of(recorded)
    return simulate_again_with(recorded, costs, _planned_costs(recorded) or costs.table)


def _planned_costs(recorded: RecordedRun) -> CostTable | None:
    """Return the costs that the run's plan was based on; None if it used none."""
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
    """Return the time of each access of a recorded run."""
    if not recorded.accesses:
        raise ConfigError(f"{recorded.path}: expected an access log to simulate again, found none")
    recipe = recorded.manifest.get("definition", {}).get("recipe", {})
    accesses, labels = recorded.accesses, recorded.labels
    if labels.has_settings:
        subnets = _subnets(recorded.directory.stream, labels)
        accesses = [_by_option(access, subnets[access.sequence_id]) for access in accesses]
    return logged_costs(accesses, recorded_steps(recipe))


def _by_option(access: Access, subnet: Subnet) -> Access:
    """Index an access by its option, as costs are, unless it is a WRITE, which options share."""
    if access.kind is AccessKind.WRITE:
        return access
    option = subnet.chain[access.layer.block]
    return access._replace(layer=access.layer._replace(candidate=option))


def simulate_again_with(recorded: RecordedRun, costs: Costs, table: CostTable) -> Fidelity:
    """Compare a recorded run with its simulation under other costs."""
    simulated = simulated_again(recorded, costs, table)
    return compare_to_real(recorded.accesses, simulated.accesses, recorded.num_stages)


def simulated_again(recorded: RecordedRun, costs: Costs, table: CostTable) -> SimulatedRun:
    """Simulate the run's stream, partitions, order and window under other costs.

    The log of the run gives the stage of each block. ``table`` holds the costs that the priorities
    of its order are based on, if it has any.

    Raises:
        ConfigError: for a run of several streams, with a memory budget, or without accesses.
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
    """Return the layers whose forwards within every step ran one after another, in order of passes.

    They include all layers whose forwards change state that the next forward uses.
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
    """Return the partition of each subnet, from the stage that ran each block."""
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


STATUS = "simulated"
"""The status of a run that has an access log, but neither losses nor a checkpoint."""


def write_simulated(
    directory: RunDirectory,
    space: Space,
    stream: Stream,
    run: SimulatedRun,
    execution: Execution,
    outcome: Outcome,
    definition: Mapping[str, Any],
) -> None:
    """Write one stream's subnets, its access log and the manifest.

    Each of several streams gets its own directory, in which it is the only one, as in real runs.
    """
    directory.create()
    choice_blocks = [block for block, one in enumerate(space.blocks) if not isinstance(one, Shared)]
    choices = [[subnet.chain[block] for block in choice_blocks] for subnet in stream.subnets]
    write_stream(directory.stream, choices)
    number = stream.subnets[0].stream
    for stage in range(run.num_stages):
        with AccessLogWriter(directory.access_log(stage)) as log:
            for access in run.columns.take(run.columns.stage == stage).accesses():
                if access.layer.stream == number:
                    log.append(access._replace(layer=access.layer._replace(stream=FIRST_STREAM)))
    plan = run.plan
    directory.write_manifest(
        {
            "format": 1,
            "status": STATUS,
            "definition": dict(definition),
            "execution": {
                **execution.as_dict(),
                "order": plan.order,
                "window": plan.window,
                "budgets": list(plan.memory.budgets) if plan.memory else [],
                "partitions": sorted(set(map(str, plan.streams[number].partitions))),
            },
            "environment": {},
            **described(space, stream.chain.stateless),
            "measured": outcome.as_dict(),
        }
    )
