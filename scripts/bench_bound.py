"""The causal bound of uniform sampling in every space, without shared layers; no schedule is run.

Causal parallelism is how many stages can be kept busy, however many there are; the bubble of N
stages is then at least 1 - parallelism / N.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

import search_spaces  # noqa: E402
from naspipe.api.simulate import Scenario, table5_scenario  # noqa: E402
from naspipe.plan.bounds import CausalBound, causal_bound  # noqa: E402
from naspipe.plan.costs import CostTable, LayerCost  # noqa: E402

EQUAL = LayerCost(1_000_000, 3_000_000, 0)
"""Every layer alike: a forward of 1, a backward of 3 (recompute included)."""


def bounds(
    scenario: Scenario, costs: CostTable, arguments: argparse.Namespace
) -> list[CausalBound]:
    """One bound per seed."""
    return [
        causal_bound(stream.subnets, stream.chain.rules, costs)
        for seed in range(arguments.seeds)
        for stream in scenario.pipeline(arguments.sampler, seed, arguments.steps).streams
    ]


def figures(found: list[CausalBound], stages: list[int]) -> dict[str, Any]:
    """Means over the seeds, and the spread of the steady parallelism."""
    steady = [bound.steady_parallelism for bound in found]
    return {
        "parallelism": statistics.mean(bound.parallelism for bound in found),
        "steady_parallelism": statistics.mean(steady),
        "steady_parallelism_spread": [min(steady), max(steady)],
        "bubble": {n: statistics.mean(bound.bubble(n) for bound in found) for n in stages},
        "steady_bubble": {
            n: statistics.mean(bound.steady_bubble(n) for bound in found) for n in stages
        },
    }


def main() -> None:
    """Compute, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--sampler", default="uniform")
    parser.add_argument("--stages", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--output", type=Path, default=ROOT / "artifacts/bound/uniform.json")
    arguments = parser.parse_args()
    result: dict[str, Any] = {
        "sampler": arguments.sampler, "steps": arguments.steps, "seeds": arguments.seeds,
        "spaces": {},
    }  # fmt: skip
    for name in search_spaces.names():
        scenario = table5_scenario(name, with_shared=False)
        counts = scenario.space.candidate_counts
        equal = CostTable({(b, c): EQUAL for b in range(len(counts)) for c in range(counts[b])})
        row = {
            kind: figures(bounds(scenario, costs, arguments), arguments.stages)
            for kind, costs in (("equal costs", equal), ("table 5", scenario.costs))
        }
        result["spaces"][name] = row
        for kind, found in row.items():
            steady = {n: round(b, 3) for n, b in found["steady_bubble"].items()}
            print(f"{name} {kind:12} {found['steady_parallelism']:.2f} {steady}", flush=True)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
