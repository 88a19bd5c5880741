"""One pipeline and the streams that share it, as every stage needs to know them."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from naspipe.config.definition import Execution, Recipe
from naspipe.config.ids import FIRST_STREAM, LayerId, StageId, Subnet, WorkerId
from naspipe.config.partition import Partition
from naspipe.config.rules import BlockRule, Frozen, rule_of, with_stateless
from naspipe.config.steps import Steps
from naspipe.config.wiring import PLAIN, Wiring
from naspipe.engine.events import KeptLayer, Planned
from naspipe.engine.history import participants
from naspipe.engine.policies import traits_of
from naspipe.jobs.ports import Positions, SubnetSource
from naspipe.jobs.workload import Common, EvaluationRecipe, Workload, common
from naspipe.plan.costs import CostTable
from naspipe.plan.memory import MemoryPlan
from naspipe.store.run_directory import RunDirectory
from naspipe.worker.checkpoints.restored import Restored


@dataclass(frozen=True, slots=True)
class OnePipeline:
    """One pipeline, a worker to each stage: worker j holds stage j."""

    num_workers: int

    def worker(self, stage: StageId) -> WorkerId:
        """Who holds a stage."""
        return WorkerId(stage)

    def stage(self, worker: WorkerId) -> StageId:
        """The stage that a worker holds."""
        return StageId(worker)


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationPlan:
    """What a stream is validated by."""

    evaluation: EvaluationRecipe
    choices: tuple[tuple[int, ...], ...]
    """Of every subnet that is judged: one per choice block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamJob:
    """One stream of a training job: its subnets, and where its results go."""

    workload: Workload
    planned: tuple[Planned, ...]
    """Every subnet; none where they come while the run goes on."""
    cuts: frozenset[Partition] = frozenset()
    """All partitions that its subnets have; none where that is not known."""
    source: SubnetSource | None = None
    """Proposes or draws them; the launcher's, no stage touches it."""
    directory: RunDirectory
    restored: Restored | None = None
    """The checkpoint that the stream goes on from."""
    kept: tuple[KeptLayer, ...] = ()
    """Its layers."""
    begins: int = 0
    """The first subnet of a stream without checkpoints, whose layers are as they were made."""
    validation: ValidationPlan | None = None
    """How the supernet is validated on the way, where it is."""
    stateless: frozenset[tuple[int, int]] = frozenset()
    """Block and candidate of the layers without parameters and buffers."""
    split: Container[tuple[int, int]] = frozenset()
    """Blocks, with those of their options whose backwards are split."""

    @property
    def rules(self) -> tuple[BlockRule, ...]:
        """Of each block of the chain."""
        space = self.workload.space
        counts = [len(block.candidates) for block in space.blocks]
        return with_stateless(space.rules, counts, self.stateless)

    @property
    def unchanged(self) -> set[tuple[int, int]]:
        """Block and candidate of the layers that nothing writes."""
        rules, is_written = self.rules, self.workload.is_written
        layers = (
            LayerId(FIRST_STREAM, block, candidate)
            for block, each in enumerate(self.workload.space.blocks)
            for candidate in range(len(each.candidates))
        )
        return {
            (layer.block, layer.candidate)
            for layer in layers
            if isinstance(rule_of(rules, layer), Frozen) or not is_written
        }

    @property
    def first(self) -> int:
        """The first subnet to train."""
        return self.restored.first if self.restored else self.begins

    @property
    def num_passes(self) -> int:
        """Sequence IDs of the whole stream: every pass of every step."""
        return self.workload.definition.num_passes

    @property
    def loss_files(self) -> list[Path]:
        """Where the losses of each section of the chain go."""
        sections = self.workload.wiring.sections(len(self.workload.space))
        return [self.directory.losses_of(number) for number in range(len(sections) or 1)]

    @property
    def so_far(self) -> Iterable[Subnet]:
        """Every subnet, as far as there are any by now."""
        return self.source.subnets if self.source else (each.subnet for each in self.planned)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingJob:
    """What a pipeline trains, and how, as every stage needs to know it."""

    streams: tuple[StreamJob, ...]
    """What shares the pipeline; one synchronisation policy for all."""
    execution: Execution
    bulk: int = 1
    """Subnets that the policy ``bsp`` trains at the same versions."""
    memory: MemoryPlan | None = None
    """What layers may occupy on each stage's device; None for no limit."""
    generation: int = 0
    """Counts the lives of the run: 0, and one more for every resume and restart."""
    costs: tuple[CostTable | None, ...] = ()
    """Of each stream, what the partitions were made from."""
    wiring: Wiring = PLAIN
    """How the streams are joined."""
    verified_until: int = 0
    """Sequence IDs below this are compared with a plain loop, in every stream."""
    buffered: frozenset[LayerId] | None = None
    """Layers whose forwards leave something for the next one; None for all."""

    @property
    def workloads(self) -> list[Workload]:
        """Of each stream."""
        return [stream.workload for stream in self.streams]

    @property
    def common(self) -> Common:
        """What the streams agree on."""
        return common(self.workloads)

    @property
    def positions(self) -> Positions:
        """Who holds which stage."""
        return OnePipeline(self.execution.workers)

    @property
    def threads(self) -> int:
        """Of the compute, on every stage."""
        return self.common.threads

    @property
    def recipes(self) -> Sequence[Recipe]:
        """Of each stream."""
        return [workload.recipe for workload in self.workloads]

    @property
    def claimed(self) -> Sequence[Path]:
        """The run directories."""
        return [stream.directory.path for stream in self.streams]

    @property
    def policy(self) -> str:
        """The synchronisation policy's name."""
        return self.common.policy

    @property
    def steps(self) -> Steps:
        """How passes form steps, in all streams."""
        return self.common.steps

    @property
    def going_on_together(self) -> list[set[int]]:
        """Streams that a life of the run has to begin at the same cut, of those with any."""
        written = {n for n, workload in enumerate(self.workloads) if workload.is_written}
        return [each & written for each in self.wiring.joined(len(self.streams))]

    @property
    def participants(self) -> list[frozenset[StageId]]:
        """Of each stream, the stages that take part in it."""
        cuts = [stream.cuts for stream in self.streams]
        return participants(cuts, self.wiring, self.execution.workers)

    @property
    def is_causal(self) -> bool:
        """Whether a cut through the stream means anything: checkpoints are taken then only."""
        return traits_of(self.policy).is_causal
