"""Simulated groups on 8 devices, uniform sampling: devices' worth of work, and causal bounds.

A step is one subnet: a pass for each of N groups of k stages, or 8 passes for all of them. Handing
a layer's sum or its copy on takes R / 2 of the layer's forward and backward of the whole step.
Then one network on groups that are far apart: what latency costs in a chain and in a tree.
Writes artifacts/groups/.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from rich.box import SIMPLE_HEAD  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from naspipe.api.simulate import Scenario, table5_scenario  # noqa: E402
from naspipe.config.definition import Execution, Recipe  # noqa: E402
from naspipe.config.ids import AccessKind, LayerId  # noqa: E402
from naspipe.engine.events import (  # noqa: E402
    LAYER,
    Parcel,
    Task,
)
from naspipe.plan.bounds import WARM_UP_SHARE, causal_bound  # noqa: E402
from naspipe.plan.chains import Stream  # noqa: E402
from naspipe.plan.costs import CostTable, LayerCost  # noqa: E402
from naspipe.plan.latest_start import CutStream  # noqa: E402
from naspipe.plan.pipeline import Plan  # noqa: E402
from naspipe.plan.simulation import SimulatedRun, simulate_run  # noqa: E402
from scripts.group_hops import all_hops  # noqa: E402
from scripts.stage_bound import step_ends  # noqa: E402

PASSES = (1, 8)
"""At least, for each step; every group has one."""
SHAPES = ((1, 8), (2, 4), (4, 2), (8, 1))
"""Groups and stages."""
DEVICES = 8
SPACES = ("nlp.c1", "nlp.c3", "cv.c3")
REDUCTIONS = (0.0, 0.05, 0.2)
DRAWN = (1, 2, 4, 8)
"""Subnets of a step."""
BOUNDED = 160
"""Passes that the bound of 8 stages is taken from."""
EQUAL = LayerCost(1_000_000, 2_000_000, 0)


@dataclass(frozen=True, slots=True)
class GroupCosts:
    """Costs of passes that are a part of a step, and of what goes between groups."""

    table: CostTable
    """Of a whole step on one device."""
    passes: int
    reduction: float

    def access_ns(self, layer: LayerId, kind: AccessKind, sequence_id: int = -1) -> int:
        """See :class:`naspipe.plan.virtual_costs.Costs`."""
        cost = self.table.of(layer.block, layer.candidate)
        parts = {AccessKind.FORWARD: cost.forward_ns, AccessKind.BACKWARD: cost.backward_ns}
        return parts.get(kind, 0) // self.passes

    def add_ns(self, layer: LayerId, sequence_id: int) -> int:
        """See :class:`naspipe.plan.virtual_costs.Costs`."""
        return 0

    def make_ns(self, layer: LayerId) -> int:
        """See :class:`naspipe.plan.virtual_costs.Costs`."""
        return 0

    def between_ns(self, parcels: int = 0) -> int:
        """See :class:`naspipe.plan.virtual_costs.Costs`."""
        return 0

    def message_ns(self, receiver: Task) -> int:
        """See :class:`naspipe.plan.virtual_costs.Costs`."""
        return 0

    def push_ns(self, layer: LayerId, parcel: Parcel = LAYER) -> int:
        """See :class:`naspipe.plan.virtual_costs.Costs`."""
        cost = self.table.of(layer.block, layer.candidate)
        return int(self.reduction / 2 * (cost.forward_ns + cost.backward_ns))

    def copy_ns(self, layer: LayerId) -> int:
        """See :class:`naspipe.plan.virtual_costs.Costs`."""
        return 0


def scenario_of(name: str, costs: str, passes: str) -> Scenario:
    """A space without its shared layers; statistics of norms are left out, too."""
    found = table5_scenario(name, with_shared=False, recompute=False, recipe=Recipe(passes=passes))
    if costs == "equal":
        counts = found.space.candidate_counts
        table = CostTable({(b, c): EQUAL for b, count in enumerate(counts) for c in range(count)})
        found = replace(found, costs=table)
    return replace(found, buffered=frozenset)


def worth(
    scenario: Scenario, groups: int, stages: int, reduction: float, num_steps: int, seed: int
) -> float:
    """Devices' worth of work: that of one device over the simulated time."""
    execution = Execution(
        groups=groups, stages=stages, order="paper", window=64 * scenario.steps.passes
    )
    pipeline = scenario.pipeline("uniform", seed, num_steps)
    plan = scenario.plan(pipeline, execution)
    timing = GroupCosts(scenario.costs, scenario.steps.passes, reduction)
    run = simulate_run(pipeline, plan, execution, timing)
    (stream,) = pipeline.streams
    work = sum(
        timing.access_ns(subnet.layer(block), kind)
        for subnet in stream.subnets
        for block in range(len(subnet.chain))
        for kind in (AccessKind.FORWARD, AccessKind.BACKWARD)
    )
    return work / run.makespan_ns


class Freed(NamedTuple):
    """Steps of several subnets, equal costs."""

    bound: float
    """Devices' worth of the causal bound, on any number of devices."""
    simulated: float
    """With a group for each pass, and a stage for each block."""
    bubble: float
    """Of one group on 8 stages."""
    bubble_above: float
    """The same, beyond the bubble that the causal bound leaves."""
    stage_bound: float
    """The bubble that any order leaves on these 8 stages; the causal bound's where that is more."""


def freed(name: str, passes: str, sampler: str, num_passes: int, seed: int) -> Freed:
    """Whether the simulator comes as far as the bounds allow."""
    scenario = scenario_of(name, "equal", passes)
    count, most = scenario.steps.passes, len(scenario.space)
    pipeline = scenario.pipeline(sampler, seed, num_passes // count)
    (stream,) = pipeline.streams
    found = causal_bound(stream.subnets, stream.chain.rules, scenario.costs, scenario.steps)

    def run(groups: int, stages: int) -> SimulatedRun:
        execution = Execution(groups=groups, stages=stages, window=64 * count)
        plan = scenario.plan(pipeline, execution)
        return simulate_run(pipeline, plan, execution, GroupCosts(scenario.costs, 1, 0))

    groups = count if count <= max(DRAWN) else 1
    staged, causal = run(1, DEVICES), found.steady_bubble(DEVICES)
    worth = groups * most * (1 - run(groups, most).summary.bubble_ratio)
    bubble = staged.summary.bubble_ratio
    least = max(causal, stage_bound(scenario, stream, staged.plan))
    return Freed(found.steady_parallelism, worth, bubble, bubble - causal, least)


def stage_bound(scenario: Scenario, stream: Stream, plan: Plan) -> float:
    """The least bubble of any order on a plan's stages while the stream's beginning flows."""
    steps = scenario.steps
    shown = max(10, BOUNDED // steps.passes) * steps.passes
    (cuts,) = plan.streams
    cut = CutStream(
        subnets=stream.subnets[:shown], partitions=cuts.partitions, rules=stream.chain.rules,
        costs=scenario.costs, ordered=plan.buffered,
    )  # fmt: skip
    ends = step_ends(cut, steps)
    warm_up = len(ends) // WARM_UP_SHARE
    later = cut.subnets[warm_up * steps.passes :]
    work = sum(scenario.costs.of(*place).total_ns for s in later for place in enumerate(s.chain))
    return 1 - work / (DEVICES * (ends[-1] - ends[warm_up - 1]))


def measured(values: Sequence[float]) -> dict[str, float]:
    """Mean and spread."""
    return {"mean": statistics.mean(values), "least": min(values), "most": max(values)}


def all_worths(arguments: argparse.Namespace, console: Console) -> list[dict[str, Any]]:
    """Every space, number of passes and cost of a reduction, on every shape."""
    rows = []
    table = Table(
        "space", "passes", "reduction", *(f"{n}x{k}" for n, k in SHAPES), "2x4 / 1x8", "4x2 / 1x8",
        box=SIMPLE_HEAD, title="devices' worth of 8 devices",
    )  # fmt: skip
    for name, least, reduction in itertools.product(arguments.spaces, PASSES, REDUCTIONS):
        row = {}
        for groups, stages in SHAPES:
            scenario = scenario_of(name, arguments.costs, f"accumulate:{max(least, groups)}")
            found = [
                worth(scenario, groups, stages, reduction, arguments.steps, seed)
                for seed in range(arguments.seeds)
            ]
            row[f"{groups}x{stages}"] = measured(found)
        rows.append({"space": name, "least_passes": least, "reduction": reduction, "shapes": row})
        means = [each["mean"] for each in row.values()]
        gains = [f"{mean / means[0]:.2f}" for mean in means[1:3]]
        passes = "one a group" if least == 1 else str(least)
        table.add_row(name, passes, f"{reduction:g}", *(f"{m:.2f}" for m in means), *gains)
    console.print(table)
    return rows


def all_bounds(arguments: argparse.Namespace, console: Console) -> list[dict[str, Any]]:
    """Every space and kind of step of several subnets."""
    rows = []
    table = Table(
        "space", "passes", "sampler", "bound", "a device for all", f"bubble on {DEVICES}",
        "above the bound", f"least on {DEVICES}", box=SIMPLE_HEAD,
        title="steps of several subnets, equal costs",
    )  # fmt: skip
    kinds = [(f"subnets:{p}", "uniform") for p in DRAWN] + [("fair", "fair")]
    for name, (passes, sampler) in itertools.product(arguments.spaces, kinds):
        each = [freed(name, passes, sampler, 1000, seed) for seed in range(arguments.seeds)]
        columns = {key: measured(values) for key, *values in zip(Freed._fields, *each, strict=True)}
        rows.append({"space": name, "passes": passes, "sampler": sampler, **columns})
        means = [f"{column['mean']:.2f}" for column in columns.values()]
        table.add_row(name, passes, sampler, *means)
        print(name, passes, sampler, *means, flush=True)
    console.print(table)
    return rows


PARTS = {"worth": all_worths, "bounds": all_bounds, "hops": all_hops}


def main() -> None:
    """Simulate, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--spaces", nargs="+", default=SPACES)
    parser.add_argument("--costs", choices=("equal", "table5"), default="table5")
    parser.add_argument("--output", type=Path, default=ROOT / "artifacts/groups/simulated.json")
    parser.add_argument("--only", choices=PARTS, help="keep the other part as it is")
    arguments = parser.parse_args()
    result: dict[str, Any] = {key: getattr(arguments, key) for key in ("steps", "seeds", "costs")}
    if arguments.only:
        result = json.loads(arguments.output.read_text())
    console = Console()
    for name in [arguments.only] if arguments.only else PARTS:
        result[name] = PARTS[name](arguments, console)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
