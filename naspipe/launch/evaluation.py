"""The launcher of an evaluation, which sends scores to the strategy and its subnets to stages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from naspipe.config.ids import FIRST_STREAM
from naspipe.engine.events import Planned
from naspipe.evaluation.evaluation import ScoreObserver
from naspipe.evaluation.evaluation_stage import EvaluationJob, EvaluationStage
from naspipe.launch.stage_pool import LauncherSide, Mailboxes, run_stages
from naspipe.launch.stopping import Stop
from naspipe.launch.supervisor import StageReports
from naspipe.machine.forking import may_compute_here
from naspipe.search.scores import Scores, scores_of
from naspipe.wire.endpoints import make_endpoints, private_directory
from naspipe.wire.messages import SubnetsMessage
from naspipe.wire.transport import Wakeup
from naspipe.worker.stage_main import run_alone

Watch = Callable[[Callable[[], str]], None]
"""Takes a function that returns the current activity of this process."""

Completed = Callable[[int, Scores], Scores]
"""Adds scores computed in the launcher's process to the scores of a subnet from the stages."""


def evaluate(
    job: EvaluationJob,
    observer: ScoreObserver,
    score: Callable[[Scores], float],
    watch: Watch = lambda current: None,
    completed: Completed = lambda subnet, scores: scores,
) -> list[dict[str, Any]]:
    """Evaluate all subnets proposed by the job's source; return the measurements of each stage.

    Args:
        job: the evaluation job.
        observer: receives the scores of every subnet.
        score: computes the number for the source; higher is better.
        watch: watches work in this process; stages in separate processes are supervised here.
        completed: adds scores to those of the stages, before they are used.

    Raises:
        StageFailedError: with the first cause, once every stage has ended.
        ConfigError: if a stage cannot use the input, or the strategy proposes an invalid subnet.
    """
    mailboxes = Mailboxes()
    stop = Stop(job.execution.pipeline.stages, mailboxes.send)
    collector = ScoreCollector(job, observer, score, mailboxes, watch, completed)
    with ExitStack() as stack:
        stack.callback(job.source.close)
        wakeup = stack.enter_context(Wakeup())
        is_alone = job.execution.pipeline.stages == 1
        if is_alone and may_compute_here(job.execution.hardware.device):
            collector.start()
            run_alone(job, collector, mailboxes.local, EvaluationStage)
        else:
            directory = stack.enter_context(private_directory())
            endpoints = make_endpoints(job.execution, directory)
            side = LauncherSide(
                collector=collector,
                start=collector.start,
                stop=stop,
                wakeup=wakeup,
                mailboxes=mailboxes,
            )
            run_stages(job, EvaluationStage, endpoints, side)
    return [collector.results[stage]["measured"] for stage in sorted(collector.results)]


class ScoreCollector(StageReports):
    """Handles the reports of all stages, and passes scores to the source and subnets to stages."""

    def __init__(
        self,
        job: EvaluationJob,
        observer: ScoreObserver,
        score: Callable[[Scores], float],
        mailboxes: Mailboxes,
        watch: Watch,
        completed: Completed,
    ) -> None:
        super().__init__(job.execution.pipeline.stages)
        self._job = job
        self._observer = observer
        self._score = score
        self._mailboxes = mailboxes
        self._watch = watch
        self._completed = completed

    def watch(self, current: Callable[[], str]) -> None:
        self._watch(current)

    def start(self) -> None:
        self._tell(0, self._job.source.begin(0, ()))

    def take(self, kind: str, stage: int, body: dict[str, Any]) -> None:
        match kind:
            case "sums":
                scores = self._completed(body["subnet"], scores_of(body["sums"]))
                self._observer.on_scores(body["subnet"], scores)
                known = self._job.source.count
                self._tell(known, self._job.source.take(body["subnet"], self._score(scores)))
            case "busy":
                self._observer.on_busy(stage, body["busy_ns"], body["elapsed_ns"])
            case _:
                super().take(kind, stage, body)

    def _tell(self, first: int, planned: Sequence[Planned]) -> None:
        if planned:
            message = SubnetsMessage(FIRST_STREAM, first, tuple(planned))
            for stage in range(self._job.execution.pipeline.stages):
                self._mailboxes.send(stage, message)
