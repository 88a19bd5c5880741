"""Simulated subnets per second, by the code that the search path leads to; prints JSON."""

from __future__ import annotations

import json
import sys

from scripts import bench_simulator


def main() -> None:
    """Measure one case of that version's scripts/bench_simulator.py: stages, subnets, sampler."""
    stages, subnets, sampler = sys.argv[1:]
    found = bench_simulator.measure(int(stages), int(subnets), sampler)
    print(json.dumps({"per_second": int(subnets) / found["cpu_seconds"]}))


if __name__ == "__main__":
    main()
