"""One stage of a pipeline that evaluates subnets, and its reports."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from naspipe.config.execution import Execution
from naspipe.config.ids import Access, SequenceId, StreamId
from naspipe.config.recipe import Recipe
from naspipe.config.rules import Frozen
from naspipe.config.wiring import StreamWiring, Wiring
from naspipe.engine.admission import AdmissionWindow, Intake
from naspipe.engine.builder import build_controller
from naspipe.engine.commands import WriteLayer
from naspipe.engine.events import Event
from naspipe.evaluation.evaluation import Evaluation, EvaluationCompute
from naspipe.jobs.ports import Positions, SubnetSource
from naspipe.machine.cuda import measured_memory
from naspipe.machine.forking import calm_collector, kept_heap
from naspipe.plan.memory import MemoryPlan, residency_of
from naspipe.wire.ports import Reporter
from naspipe.worker.blocks.ports import BlockResult
from naspipe.worker.checkpoints.checkpointer import Checkpointer
from naspipe.worker.driver import StageDriver
from naspipe.worker.job import OnePipeline
from naspipe.worker.layers.stored_layer import StoredLayer
from naspipe.worker.stage_process import GRACE_SECONDS, StageSeat

_BUSY_EVERY_SECONDS = 0.5

FORWARD_ONLY = Wiring(streams=(StreamWiring(is_trained=False),))
"""One stream without training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationJob:
    """Description of a search for the stages and the launcher."""

    evaluation: Evaluation
    source: SubnetSource
    """Proposes subnets from scores, in the launcher."""
    budget: int
    """Total number of subnets."""
    execution: Execution
    memory: MemoryPlan | None = None
    directory: Path | None = None
    """Directory of the search, if any."""

    @property
    def positions(self) -> Positions:
        return OnePipeline(self.execution.pipeline.stages)

    @property
    def threads(self) -> int:
        return self.evaluation.recipe.threads

    @property
    def recipes(self) -> Sequence[Recipe]:
        return [self.evaluation.stateless_recipe]

    @property
    def claimed(self) -> Sequence[Path]:
        return [self.directory] if self.directory else []


class EvaluationStage:
    """A stage of an evaluation, ready to run."""

    def __init__(self, job: EvaluationJob, seat: StageSeat) -> None:
        self._seat = seat
        stage, reporter, execution = seat.stage, seat.reporter, job.execution
        self._checkpointer = Checkpointer(stage, 0, (), 0, reporter, seat.wakeup.set)
        compute = EvaluationCompute(job.evaluation, seat.placement)
        self._driver = StageDriver(
            stage,
            build_controller(
                stage,
                [[Frozen()] * len(job.evaluation.space)],
                order="paper",
                residency=residency_of(job.memory, stage, execution),
                wiring=FORWARD_ONLY,
            ),
            [Intake(AdmissionWindow(execution.pipeline.window, job.budget))],
            compute=compute,
            stores=compute.stores,
            placement=seat.placement,
            transport=seat.transport,
            positions=job.positions,
            sink=ScoreSink(reporter),
            checkpointer=self._checkpointer,
            timeout_seconds=execution.watch.timeout_seconds + GRACE_SECONDS,
            wiring=FORWARD_ONLY,
        )

    @property
    def current(self) -> str:
        return self._driver.current

    def run(self) -> None:
        with self._checkpointer, calm_collector(), kept_heap():
            self._driver.run()
        measured = {**self._seat.placement.measured(), **measured_memory()}
        self._seat.reporter.report("done", {"measured": measured})


class ScoreSink:
    """Reports sums to the launcher, and periodically the busy time of the stage."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._busy_ns = 0
        self._start_ns = self._told_ns = time.monotonic_ns()

    def access(self, access: Access) -> None:
        """See ``StageSink``; an evaluation writes no log, so only busy time is counted."""
        self._busy_ns += access.end_ns - access.start_ns
        now_ns = time.monotonic_ns()
        if now_ns - self._told_ns > _BUSY_EVERY_SECONDS * 1e9:
            self._told_ns = now_ns
            body = {"busy_ns": self._busy_ns, "elapsed_ns": now_ns - self._start_ns}
            self._reporter.report("busy", body)

    def result(self, stream: StreamId, sequence_id: SequenceId, result: BlockResult) -> None:
        self._reporter.report("sums", {"subnet": int(sequence_id), "sums": result.value.tolist()})

    def event(self, event: Event) -> None:
        """See ``StageSink``."""

    def written(self, command: WriteLayer, stored: StoredLayer) -> None:
        """See ``StageSink``; an evaluation writes no layers."""

    def held(self, admitted: Sequence[int]) -> None:
        """See ``StageSink``."""
