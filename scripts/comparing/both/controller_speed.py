"""Controller events per second in a simulation, by the code that the search path leads to.

Prints one JSON object. The simulation is that of the same version's simulator benchmark:
nlp.c1 on two stages, a window of 64 subnets; the argument is a memory budget, or nothing.
"""

from __future__ import annotations

import functools
import json
import sys
import time

from naspipe.engine.controller import StageController

try:
    from scripts.bench import simulator
except ImportError:  # a version before the benchmarks had a folder
    from scripts import bench_simulator as simulator

SUBNETS = 300


def main() -> None:
    """Simulate, with every event of every controller timed."""
    times_ns: list[int] = []
    handle = StageController.handle

    def timed(controller, event):
        start_ns = time.thread_time_ns()  # what others do meanwhile is not counted
        commands = handle(controller, event)
        times_ns.append(time.thread_time_ns() - start_ns)
        return commands

    StageController.handle = timed
    if budget := "".join(sys.argv[1:]):
        simulator.Execution = functools.partial(simulator.Execution, memory_budget=budget)
    simulator.measure(2, SUBNETS, "uniform")
    print(json.dumps({"per_second": len(times_ns) / (sum(times_ns) / 1e9)}))


if __name__ == "__main__":
    main()
