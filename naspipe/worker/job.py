"""A training job: one pipeline and the streams that share it, as every stage sees them."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from naspipe.config.execution import Execution
from naspipe.config.ids import FIRST_STREAM, LayerId, StageId, Subnet, WorkerId
from naspipe.config.partition import Partition
from naspipe.config.recipe import Recipe
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
    """One pipeline with one worker per stage: worker j holds stage j."""

    num_workers: int

    def worker(self, stage: StageId) -> WorkerId:
        return WorkerId(stage)

    def stage(self, worker: WorkerId) -> StageId:
        return StageId(worker)


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationPlan:
    """How a stream is validated, and with which subnets."""

    evaluation: EvaluationRecipe
    choices: tuple[tuple[int, ...], ...]
    """For every subnet that is evaluated, one choice per choice block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamJob:
    """One stream of a training job: its subnets, and the directory of its results."""

    workload: Workload
    planned: tuple[Planned, ...]
    """All subnets; empty if they are drawn or proposed during the run."""
    cuts: frozenset[Partition] = frozenset()
    """All partitions of its subnets; empty if they are not known."""
    source: SubnetSource | None = None
    """Proposes or draws the subnets. It is owned by the launcher; no stage uses it."""
    directory: RunDirectory
    restored: Restored | None = None
    """The checkpoint that the stream resumes from."""
    kept: tuple[KeptLayer, ...] = ()
    """The layers of that checkpoint."""
    begins: int = 0
    """The first subnet, if the stream has no checkpoint and starts from newly created layers."""
    validation: ValidationPlan | None = None
    stateless: frozenset[tuple[int, int]] = frozenset()
    """Pairs (block, candidate) of the layers without parameters and buffers."""
    split: Container[tuple[int, int]] = frozenset()
    """Pairs (block, option) of the candidates whose backwards are split."""

    @property
    def rules(self) -> tuple[BlockRule, ...]:
        space = self.workload.space
        counts = [len(block.candidates) for block in space.blocks]
        return with_stateless(space.rules, counts, self.stateless)

    @property
    def unchanged(self) -> set[tuple[int, int]]:
        """Pairs (block, candidate) of the layers that no update writes."""
        rules, is_written = self.rules, self.workload.is_written
        return {
            (block, candidate)
            for block, each in enumerate(self.workload.space.blocks)
            for candidate in range(len(each.candidates))
            if not is_written
            or isinstance(rule_of(rules, LayerId(FIRST_STREAM, block, candidate)), Frozen)
        }

    @property
    def first(self) -> int:
        return self.restored.first if self.restored else self.begins

    @property
    def num_passes(self) -> int:
        """Number of sequence IDs of the whole stream, one for every pass of every step."""
        return self.workload.definition.num_passes

    @property
    def loss_files(self) -> list[Path]:
        sections = self.workload.wiring.sections(len(self.workload.space))
        return [self.directory.losses_of(number) for number in range(len(sections) or 1)]

    @property
    def so_far(self) -> Iterable[Subnet]:
        return self.source.subnets if self.source else (each.subnet for each in self.planned)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingJob:
    """What a pipeline trains, and how."""

    streams: tuple[StreamJob, ...]
    """The streams, which share the pipeline and one synchronisation policy."""
    execution: Execution
    bulk: int = 1
    """Number of subnets that the policy ``bsp`` trains at the same versions."""
    memory: MemoryPlan | None = None
    """Memory that layers may occupy on each stage's device; None for no limit."""
    generation: int = 0
    """Number of resumes and restarts so far."""
    costs: tuple[CostTable | None, ...] = ()
    """The costs from which each stream's partitions were made."""
    wiring: Wiring = PLAIN
    verified_until: int = 0
    """Sequence IDs below this are compared with a plain loop, in every stream."""
    buffered: frozenset[LayerId] | None = None
    """Layers whose forwards write buffers that the next forward reads; None means all layers."""

    @property
    def workloads(self) -> list[Workload]:
        return [stream.workload for stream in self.streams]

    @property
    def common(self) -> Common:
        return common(self.workloads)

    @property
    def positions(self) -> Positions:
        return OnePipeline(self.execution.workers)

    @property
    def threads(self) -> int:
        return self.common.threads

    @property
    def recipes(self) -> Sequence[Recipe]:
        return [workload.recipe for workload in self.workloads]

    @property
    def claimed(self) -> Sequence[Path]:
        return [stream.directory.path for stream in self.streams]

    @property
    def policy(self) -> str:
        return self.common.policy

    @property
    def steps(self) -> Steps:
        return self.common.steps

    @property
    def going_on_together(self) -> list[set[int]]:
        """Groups of written streams that must begin an attempt at the same cut."""
        written = {n for n, workload in enumerate(self.workloads) if workload.is_written}
        return [each & written for each in self.wiring.joined(len(self.streams))]

    @property
    def participants(self) -> list[frozenset[StageId]]:
        cuts = [stream.cuts for stream in self.streams]
        return participants(cuts, self.wiring, self.execution.workers)

    @property
    def is_causal(self) -> bool:
        """True for a causal policy. Only then are cuts well-defined and checkpoints taken."""
        return traits_of(self.policy).is_causal
