"""Simulated subnets per second, by the code that the search path leads to; prints JSON."""

from __future__ import annotations

import json
import sys

try:
    from scripts.bench import simulator
except ImportError:  # a version before the benchmarks had a folder
    from scripts import bench_simulator as simulator


def main() -> None:
    """Measure one case of that version's simulator benchmark: stages, subnets, sampler."""
    stages, subnets, sampler = sys.argv[1:]
    found = simulator.measure(int(stages), int(subnets), sampler)
    print(json.dumps({"per_second": int(subnets) / found["cpu_seconds"]}))


if __name__ == "__main__":
    main()
