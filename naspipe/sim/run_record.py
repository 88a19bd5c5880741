"""A simulated run as a run directory, so that what reads real runs reads it too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from naspipe.config.definition import Execution
from naspipe.config.ids import FIRST_STREAM
from naspipe.config.space import Shared, Space
from naspipe.sim.chains import Stream
from naspipe.sim.outcome import Outcome
from naspipe.sim.simulation import SimulatedRun
from naspipe.streams.from_file import write_stream
from naspipe.trace.access.labels import described
from naspipe.trace.access.log import AccessLogWriter
from naspipe.trace.results.run_directory import RunDirectory

STATUS = "simulated"
"""Of the manifest: such a run has an access log, and neither losses nor a checkpoint."""


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

    Several streams have a directory each, in which each is the only one, as real runs have.

    Raises:
        ConfigError: when something is in the directory already.
    """
    directory.create()
    choice_blocks = [block for block, one in enumerate(space.blocks) if not isinstance(one, Shared)]
    choices = [[subnet.chain[block] for block in choice_blocks] for subnet in stream.subnets]
    write_stream(directory.stream, choices)
    number = stream.subnets[0].stream
    for stage in range(run.num_stages):
        with AccessLogWriter(directory.access_log(stage)) as log:
            for access in run.accesses.of_stage(stage):
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
