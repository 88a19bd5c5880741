"""Hit rate and stall of the emulated device beside what the simulator says of the same runs.

Every configuration is profiled, trained and simulated in one go: the same stream, partitions,
order, budget, bandwidth and latency. The simulator gets its costs twice: from the profile
(a prediction), and from the run's own log with the bandwidth that its copies reached (what
then differs is the model). The bandwidth is chosen so that a layer's load lasts a given share of
its forward, as on the hardware of NASPipe's Table 5 (10 to 25 %): here, a copy takes a core from
the compute. Writes artifacts/residency/emulated.json. The exit status is 1 where the prediction for
a run with the predictor is further than two points from the run.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from naspipe.api.planning import make_plan
from naspipe.api.training import Training
from naspipe.checks.sketched import measure_sizes
from naspipe.config.blocks import Shared
from naspipe.config.execution import Execution
from naspipe.config.ids import (
    Access,
    AccessKind,
    LayerId,
    SequenceId,
    StreamId,
    Subnet,
)
from naspipe.engine.events import (
    LAYER,
    Parcel,
    Task,
)
from naspipe.jobs.workload import Workload
from naspipe.machine.determinism import describe_environment
from naspipe.plan.chains import Chain, Stream
from naspipe.plan.costs import CostTable
from naspipe.plan.fidelity import LoggedCosts, logged_costs
from naspipe.plan.pipeline import Pipeline
from naspipe.plan.simulation import measured_timing, simulate_run
from naspipe.plan.virtual_costs import Costs
from naspipe.profiling.profiles import (
    ProfileCache,
    profile_apart,
)
from naspipe.store.access_log import read_run_accesses
from naspipe.store.files import write_json
from naspipe.store.metrics import summarize
from naspipe.store.run_directory import RunDirectory
from naspipe.streams.samplers import draw_stream
from naspipe.wire.reports import Observer
from scripts.bench.common import ROOT
from scripts.tiny_workload import tiny_workload

MOST_APART = 0.02
"""Of hit rates, and of stall times over the makespan."""


class Setting(NamedTuple):
    """One configuration."""

    space: str
    stages: int
    budget: str
    prefetch: bool


@dataclass(frozen=True)
class RunCosts:
    """What every access of a run took, and copies as fast as they were in it."""

    logged: LoggedCosts
    copies: Costs
    slowdown: float
    """Time of the run's copies over what bandwidth and latency say."""

    def access_ns(self, layer: LayerId, kind: AccessKind, sequence_id: int = -1) -> int:
        """See :class:`naspipe.plan.virtual_costs.Costs`."""
        return self.logged.access_ns(layer, kind, sequence_id)

    def add_ns(self, layer: LayerId, sequence_id: int) -> int:
        """See :class:`naspipe.plan.virtual_costs.Costs`."""
        return self.logged.add_ns(layer, sequence_id)

    def make_ns(self, layer: LayerId) -> int:
        """See :class:`naspipe.plan.virtual_costs.Costs`."""
        return self.logged.make_ns(layer)

    def between_ns(self, parcels: int = 0) -> int:
        """See :class:`naspipe.plan.virtual_costs.Costs`."""
        return self.logged.between_ns()

    def message_ns(self, receiver: Task) -> int:
        """See :class:`naspipe.plan.virtual_costs.Costs`."""
        return self.logged.message_ns(receiver)

    def push_ns(self, layer: LayerId, parcel: Parcel = LAYER) -> int:
        """See :class:`naspipe.plan.virtual_costs.Costs`."""
        return self.logged.push_ns(layer)

    def copy_ns(self, layer: LayerId) -> int:
        """See :class:`naspipe.plan.virtual_costs.Costs`."""
        return int(self.copies.copy_ns(layer) * self.slowdown)


def workload_of(space: str, steps: int) -> tuple[Workload, tuple[Subnet, ...]]:
    """A space at tiny scale as `naspipe train` would train it, and its uniform stream."""
    workload = tiny_workload(space).redefined(steps=steps)
    counts, seed = workload.space.candidate_counts, workload.definition.seed
    stream = draw_stream("uniform", counts, seed, steps)
    return workload, tuple(
        Subnet(StreamId(0), SequenceId(y), workload.space.chain(choices))
        for y, choices in enumerate(stream)
    )


def bandwidth_for(
    share: float, workload: Workload, subnets: Sequence[Subnet], costs: CostTable
) -> float:
    """Bytes per second at which the loads of a stream last a share of its forwards.

    Shared layers, which stay on the device, are left out.
    """
    sizes, blocks = measure_sizes(workload), workload.space.blocks
    is_choice = [not isinstance(block, Shared) for block in blocks]
    layers = [pair for subnet in subnets for pair in enumerate(subnet.chain) if is_choice[pair[0]]]
    forward_ns = sum(costs.of(*pair).forward_ns for pair in layers)
    return sum(sizes.of(*pair).state_bytes for pair in layers) / (share * forward_ns / 1e9)


def figures(accesses: Sequence[Access], stages: int) -> dict[str, float]:
    """Of one run, real or simulated."""
    found = summarize(accesses, stages)
    reads = [access for access in accesses if access.kind is not AccessKind.WRITE]
    waits = [access.stalled_ns for access in reads if not access.is_hit]
    return {
        "hit_rate": found.hit_rate,
        "stall_ratio": found.stall_ratio,
        "bubble_ratio": found.bubble_ratio,
        "steps_per_second": found.passes_per_second,
        "misses": len(waits),
        "median_wait_us": statistics.median(waits) / 1e3 if waits else 0.0,
    }


def copy_seconds(stages: Sequence[dict[str, float]]) -> tuple[float, float]:
    """Bytes that all stages loaded, and how long that took."""
    busy = [stage for stage in stages if stage["load_bytes"]]
    seconds = sum(stage["load_bytes"] / stage["load_bytes_per_second"] for stage in busy)
    return sum(stage["load_bytes"] for stage in busy), seconds


def measure(setting: Setting, steps: int, share: float, latency: float) -> dict[str, Any]:
    """Profile, train and simulate one configuration."""
    workload, subnets = workload_of(setting.space, steps)
    costs = profile_apart(workload, 300)
    ProfileCache(workload).write(costs)  # make_plan and the run take it from there
    execution = Execution(
        stages=setting.stages, memory_budget=setting.budget, prefetch=setting.prefetch,
        bandwidth=bandwidth_for(share, workload, subnets, costs), latency=latency,
    )  # fmt: skip
    pipeline = Pipeline(streams=(Stream(Chain.of(workload.space), subnets, costs),))
    plan = make_plan([workload], execution, [subnets])
    with tempfile.TemporaryDirectory(prefix="npe") as scratch:
        path = Path(scratch) / "run"
        Training(workloads=[workload], execution=execution, path=path, observer=Observer()).run()
        accesses = read_run_accesses(path)
        stages = RunDirectory(path).read_manifest()["measured"]["stages"]
    loaded_bytes, seconds = copy_seconds(stages)
    loads = sum(stage["load_copies"] for stage in stages)
    expected_seconds = loaded_bytes / execution.hardware.bandwidth + loads * latency
    timing = measured_timing(pipeline, execution, plan.memory)
    slowdown = seconds / expected_seconds
    timings = {
        "simulated": timing,
        "simulated_with_the_runs_costs": RunCosts(logged_costs(accesses), timing, slowdown),
    }
    real = figures(accesses, setting.stages)
    simulated = {
        name: figures(simulate_run(pipeline, plan, execution, each).accesses, setting.stages)
        for name, each in timings.items()
    }
    return {
        **setting._asdict(), "steps": steps, "order": plan.order,
        "bandwidth_bytes_per_second": execution.hardware.bandwidth,
        "latency_seconds": latency, "copy_time_over_asked": slowdown,
        "real": real, **simulated,
        "real_less_simulated": {
            name: real[name] - simulated["simulated"][name] for name in ("hit_rate", "stall_ratio")
        },
    }  # fmt: skip


def main(words: Sequence[str] | None = None) -> int:
    """Measure every configuration, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spaces", nargs="+", default=["nlp.c1", "cv.c1"])
    parser.add_argument("--stages", nargs="+", type=int, default=[2, 4])
    parser.add_argument("--budgets", nargs="+", default=["3x"])
    parser.add_argument("--prefetch", nargs="+", default=["on", "off"])
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--share", type=float, default=0.2, help="of a forward that a load lasts")
    parser.add_argument("--latency", type=float, default=20e-6)
    parser.add_argument("--output", type=Path, default=ROOT / "artifacts/residency/emulated.json")
    arguments = parser.parse_args(words)
    rows = []
    settings = itertools.product(
        arguments.spaces, arguments.stages, arguments.budgets,
        [choice == "on" for choice in arguments.prefetch],
    )  # fmt: skip
    for setting in itertools.starmap(Setting, settings):
        row = measure(setting, arguments.steps, arguments.share, arguments.latency)
        rows.append(row)
        print(f"{setting.space} {setting.stages} stages {setting.budget} "
              f"{'with' if setting.prefetch else 'without'} the predictor")  # fmt: skip
        for name in ("real", "simulated", "simulated_with_the_runs_costs"):
            print(f"  {name:30}", {key: round(value, 4) for key, value in row[name].items()})
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        content = {"most_apart": MOST_APART, "environment": describe_environment(), "runs": rows}
        write_json(arguments.output, {"command": "python scripts/bench emulated", **content})
    apart = [abs(d) for r in rows if r["prefetch"] for d in r["real_less_simulated"].values()]
    return int(max(apart, default=0.0) > MOST_APART)
