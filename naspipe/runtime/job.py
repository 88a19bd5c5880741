"""One pipeline and the streams that share it, as every stage needs to know them."""

from __future__ import annotations

from dataclasses import dataclass

from naspipe.core.config import Execution
from naspipe.core.events import KeptLayer, Priorities
from naspipe.core.ids import StreamId
from naspipe.core.partition import Partition
from naspipe.core.subnet import Subnet
from naspipe.planning.memory import MemoryPlan
from naspipe.runtime.compute import Workload
from naspipe.runtime.restored import Restored
from naspipe.trace.run_directory import RunDirectory


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamJob:
    """One stream of a job: what is trained, and where its results go."""

    workload: Workload
    subnets: tuple[Subnet, ...]
    partitions: tuple[Partition, ...]
    """Of every subnet."""
    priorities: tuple[Priorities, ...] | None = None
    """Of every subnet, where the dispatch order asks for them."""
    directory: RunDirectory
    restored: Restored | None = None
    """The checkpoint that the stream goes on from."""
    kept: tuple[KeptLayer, ...] = ()
    """Its layers."""

    @property
    def first(self) -> int:
        """The first subnet to train."""
        return self.restored.first if self.restored else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One pipeline, as every stage needs to know it."""

    streams: tuple[StreamJob, ...]
    """What shares the pipeline; one synchronisation policy for all."""
    execution: Execution
    bulk: int = 1
    """Subnets that the policy ``bsp`` trains at the same versions."""
    memory: MemoryPlan | None = None
    """What layers may occupy on each stage's device; None for no limit."""
    generation: int = 0
    """Counts the lives of the run: 0, and one more for every resume and restart."""

    @property
    def workloads(self) -> list[Workload]:
        """Of each stream."""
        return [stream.workload for stream in self.streams]

    @property
    def policy(self) -> str:
        """The synchronisation policy's name."""
        return self.streams[0].workload.definition.policy

    @property
    def is_causal(self) -> bool:
        """Whether a cut through the stream means anything: checkpoints are taken then only."""
        return self.policy in ("csp", "sequential")

    def admitted(
        self, stream: StreamId, sequence_id: int
    ) -> tuple[Subnet, Partition, Priorities | None]:
        """What every stage is told of a subnet when it is admitted."""
        job = self.streams[stream]
        priorities = job.priorities[sequence_id] if job.priorities else None
        return job.subnets[sequence_id], job.partitions[sequence_id], priorities
