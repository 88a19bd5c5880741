"""What can be simulated: a space, what its layers cost, and the streams drawn from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import search_spaces
from naspipe.config.definition import Execution, Recipe
from naspipe.config.errors import ConfigError
from naspipe.config.ids import StreamId, Subnet
from naspipe.config.rules import Rule
from naspipe.config.space import Space
from naspipe.config.steps import NO_PROBES, ONE_PASS, Steps
from naspipe.planning.cost import CostTable
from naspipe.planning.memory import DeviceSizes, MemoryPlan
from naspipe.sim.chains import Chain, Stream
from naspipe.sim.pipeline import Pipeline, Plan
from naspipe.sim.ports import Costs
from naspipe.sim.simulation import SimulatedRun, chosen_plan, simulate_run, table_timing
from naspipe.streams.passes import in_passes, num_draws
from naspipe.streams.samplers import draw_subnets
from search_spaces.table5 import table5_costs, table5_sizes, without_shared

if TYPE_CHECKING:
    from naspipe.runtime.jobs.workload import Workload

COSTS = ("profiled", "table5")
"""Where costs can be from."""

DATA_INFO = {
    "vocabulary": 32_000, "padding": 1, "channels": 3, "height": 224, "width": 224,
    "classes": 1000,
}  # fmt: skip
"""What a data set would say of itself, where none is needed: WMT's and ImageNet's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A space whose layers' costs are known."""

    space: Space
    costs: CostTable
    timing: Callable[[CostTable, Execution, MemoryPlan | None], Costs]
    """What everything takes under a way of execution and its memory plan, with these costs."""
    sizes: DeviceSizes | None
    """Bytes of every layer; None where they are not known."""
    costs_from: str
    """One of :data:`COSTS`."""
    parameters: Callable[[int, int], int]
    """How large a layer is, by block of the chain and candidate; for the sandwich rule."""
    steps: Steps = ONE_PASS
    """How passes form steps."""
    buffered: Callable[[], frozenset[tuple[int, int]]] = frozenset
    """Block and candidate of the layers with buffers."""
    stateless: Callable[[], frozenset[tuple[int, int]]] = frozenset
    """Block and candidate of the layers without parameters and buffers."""
    beside: Callable[[int], dict[str, Any]] | None = None
    """What changes where so many workers compute at once; None where nothing does."""

    def on_workers(self, count: int) -> Scenario:
        """The same with what layers cost where so many workers compute at once.

        Processes on one machine share caches and memory's bandwidth, so each is slower than alone.
        """
        return self if self.beside is None else replace(self, **self.beside(count))

    def stepping(self, passes: str, probes: str = NO_PROBES) -> Scenario:
        """The same with other steps.

        Raises:
            ConfigError: for texts that no recipe has as ``passes`` and ``probes``.
        """
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
        """Streams of this space with the seeds ``seed``, ``seed`` + 1, ...

        Where steps have several passes it is looked up which layers have buffers.

        Raises:
            ConfigError: for a sampler that does not exist or holds fewer subnets.
        """
        if steps < 1 or streams < 1:
            raise ConfigError(f"expected 1 or more steps and streams, found {steps} and {streams}")
        buffered = self.buffered() if self.steps.passes > 1 else None
        chain = Chain.of(self.space, buffered, self.stateless())
        return Pipeline(
            streams=tuple(
                Stream(
                    chain,
                    self._draw(StreamId(number), sampler, seed + number, steps),
                    self.costs,
                    is_sample=self.steps.probes > 0,
                )
                for number in range(streams)
            ),
            policy=policy,
            bulk=bulk,
            steps=self.steps,
        )

    def plan(self, pipeline: Pipeline, execution: Execution) -> Plan:
        """The plan that a real run of these streams would follow, had it these costs.

        Raises:
            ConfigError: for more stages than blocks, or a budget below the least that works.
        """

        def timing(pipeline: Pipeline, memory: MemoryPlan | None) -> Costs:
            return self.timing(pipeline.streams[0].costs or self.costs, execution, memory)

        return chosen_plan(pipeline, execution, self.sizes, timing)

    def run(
        self, pipeline: Pipeline, execution: Execution, plan: Plan | None = None
    ) -> SimulatedRun:
        """Simulate streams, under the plan they would have unless another is given."""
        plan = plan or self.plan(pipeline, execution)
        costs = self.costs.split(plan.streams[0].split)
        return simulate_run(pipeline, plan, execution, self.timing(costs, execution, plan.memory))

    def _draw(self, stream: StreamId, sampler: str, seed: int, steps: int) -> tuple[Subnet, ...]:
        drawn = draw_subnets(sampler, self.space, seed, num_draws(self.steps, steps))
        passes = in_passes(drawn, self.steps, self.space, self.parameters)
        return tuple(
            self.space.subnet(stream, number, self.space.chain(choices))
            for number, choices in enumerate(passes)
        )


def profiled_scenario(workload: Workload, execution: Execution) -> Scenario:
    """A workload with the costs that its layers have on this machine, measured once and kept.

    Raises:
        StageFailedError: when a layer, the loss or the data raises in the profile.
    """
    from naspipe.frontend.given.pass_streams import parameter_counts
    from naspipe.frontend.given.run_plan import cores_for, measured_costs, measured_sizes
    from naspipe.runtime.measuring.stateless_layers import stateless_layers

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
    """Needs torch, so only where it is asked for."""
    from naspipe.runtime.sketching.layer_sizes import buffered_layers

    return buffered_layers(space, defers_norms)


def table5_scenario(
    name: str,
    *,
    with_shared: bool = True,
    recompute: bool = True,
    recipe: Recipe | None = None,
    rules: Mapping[str, Rule] | None = None,
) -> Scenario:
    """A space of naspipe's with the published costs of its layers; needs neither torch nor data.

    Args:
        name: one of :func:`search_spaces.names`.
        with_shared: keep the embeddings, the stem and the head; the paper freezes them.
        recompute: count each forward twice, as the paper does.
        recipe: says how passes form steps.
        rules: of shared layers, in place of the space's.

    Raises:
        ConfigError: for a space that the table knows nothing of, or a layer that it does not have.
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
