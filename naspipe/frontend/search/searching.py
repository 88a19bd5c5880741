"""From a run to its best subnets: what is proposed, judged and written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from naspipe.config.definition import Execution, Recipe
from naspipe.config.errors import ConfigError
from naspipe.config.ids import FIRST_STREAM
from naspipe.config.rules import Frozen
from naspipe.data.keyed.loader_pool import close_all
from naspipe.frontend.checks.data_checks import check_is_data
from naspipe.frontend.checks.device_checks import check_data_path, check_device
from naspipe.frontend.checks.input_checks import check_proof
from naspipe.frontend.checks.limit_checks import check_limits
from naspipe.frontend.given.run import Run, check_space
from naspipe.frontend.given.run_plan import measured_costs, measured_sizes
from naspipe.frontend.given.strategy_source import StrategySource, sample_stream
from naspipe.frontend.search.estimates import Estimates, proxies_in
from naspipe.frontend.search.judging import Judging
from naspipe.frontend.search.ports import SearchObserver
from naspipe.frontend.search.run_workload import run_workload
from naspipe.frontend.search.search_parts import (
    Pricer,
    find_strategy,
    find_weights,
    forward_costs,
    sampling,
)
from naspipe.frontend.search.search_record import Recorder
from naspipe.frontend.search.verifying_scores import FirstAndBest, verifier_of
from naspipe.planning.cost import CostTable
from naspipe.planning.memory import MemoryPlan
from naspipe.runtime.devices.environment import describe_environment
from naspipe.runtime.devices.gpus import NO_GPUS, find_gpus
from naspipe.runtime.evaluating.evaluation import evaluation_of
from naspipe.runtime.evaluating.evaluation_stage import EvaluationJob
from naspipe.runtime.jobs.batches_apart import batch_apart
from naspipe.runtime.jobs.evaluation_recipe import EvaluationRecipe
from naspipe.runtime.jobs.losses import Loss
from naspipe.runtime.jobs.workload import Batches, Workload
from naspipe.runtime.wire.endpoints import check_endpoints
from naspipe.search.definition import SearchDefinition
from naspipe.search.run_searches import default_name, search_path
from naspipe.search.search_directory import Search, SearchDirectory
from naspipe.search.standard_scores import SAMPLE
from naspipe.sim.chains import Chain, Stream
from naspipe.sim.cutting import CutSteps
from naspipe.sim.pipeline import Pipeline, plan_pipeline
from naspipe.streams.ports import ExplorationStrategy
from naspipe.trace.snapshots.snapshot import Checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Searching:
    """A search that is defined but not yet started."""

    run: Run
    data: Batches
    """What the run was trained on: batches to calibrate with."""
    held_out: Batches
    """Batches to judge by."""
    loss: Loss
    definition: SearchDefinition
    execution: Execution
    name: str = ""
    """Of the search's directory; the next number by default."""
    observer: SearchObserver
    strategy: Any = None
    """What proposes subnets, where it is an object; the definition has its name."""
    judge: Callable[[Sequence[int]], float] | None = None
    """Of the score ``bleu``: decodes with a subnet of these choices."""

    def start(self) -> Search:
        """Check everything, then judge every subnet and leave a search inside the run.

        Raises:
            ConfigError: when the input cannot be used; nothing has been written then, unless only
                a stage could find it: the manifest then says ``failed``.
            StageFailedError: when a stage raised.
            VerificationError: when a score has other bits than that of the plain network.
        """
        execution = self.execution
        directory = self._check()
        workload = run_workload(self.run, self.data, self.loss)
        check_proof(workload)
        checkpoint = find_weights(self.run)
        costs = forward_costs(measured_costs([workload], execution)[0])
        pricer = Pricer(
            self.run.space, batch_apart(self.held_out, workload.definition.seed, 0), costs
        )
        definition = self._definition()
        make = find_strategy(definition, self.run.space, pricer, self.strategy)
        judging = self._judging(workload)
        cut, memory, window = self._plan(workload, costs)
        directory.create()
        recorder = Recorder(
            directory,
            definition.score,
            pricer,
            self.observer,
            self._manifest(checkpoint, definition, window),
        )
        source = self._source(make, cut, directory.path / "stream.jsonl", definition.budget)
        evaluation = EvaluationRecipe(
            workload=workload,
            held_out=self.held_out,
            calibration=definition.calibration,
            validation=definition.validation,
            ema=definition.ema,
        )
        job = EvaluationJob(
            evaluation=evaluation_of(evaluation, checkpoint),
            source=source,
            budget=definition.budget,
            execution=execution.changed(window=window),
            memory=memory,
            directory=directory.path,
        )
        choices_of = judging.choices_of(source)
        with (
            verifier_of(job, evaluation, checkpoint, definition.score) as verifier,
            recorder.recording(choices_of),
            ExitStack() as stack,
        ):
            stack.callback(close_all)
            observer = FirstAndBest(recorder, verifier, choices_of)
            standard = judging.standard(
                job,
                lambda: self._source(
                    find_strategy(sampling(definition), self.run.space, pricer),
                    cut, directory.path / "sample.jsonl", SAMPLE,
                ),
            )  # fmt: skip
            if standard is not None:
                recorder.note(sample=standard.as_dict())
            recorder.stages = judging.run(job, source, observer, standard)
            if execution.verification.verify != "0":
                recorder.note(verified=observer.finish(definition.score).as_dict())
        return directory.read()

    def _source(
        self,
        make: Callable[[], ExplorationStrategy],
        cut: CutSteps,
        record: Path,
        count: int,
    ) -> StrategySource:
        """Subnets of a strategy."""
        return StrategySource(
            make, self.run.space, FIRST_STREAM, cut,
            delay=self.definition.delay, num_subnets=count, record=record,
        )  # fmt: skip

    def _judging(self, workload: Workload) -> Judging:
        """What subnets are judged by; proxies that can tell nothing of the space are refused."""
        score, defined = self.definition.score, workload.definition
        estimates = None
        if proxies_in(score):
            batch = batch_apart(self.data, defined.seed, 0)
            threads = defined.recipe.threads
            estimates = Estimates(score, workload.space, defined.seed, threads, batch)
            estimates.check()
        return Judging(score=score, space=workload.space, estimates=estimates, bleu=self.judge)

    def _check(self) -> SearchDirectory:
        """What can be known to be wrong at first; returns the place of the search."""
        space, execution = self.run.space, self.execution
        check_is_data(self.data)
        check_is_data(self.held_out, "held_out")
        check_space(self.run)
        if self.definition.ema:
            self.run.check_averages()
        if (self.definition.score == "bleu") != (self.judge is not None):
            raise ConfigError(
                "--score bleu: expected what decodes with a subnet, and no other score"
            )
        gpus = NO_GPUS if execution.hardware.device == "cpu" else find_gpus()
        check_device(execution.hardware.device, len(gpus))
        check_data_path(execution, gpus)
        if execution.pipeline.stages > len(space):
            raise ConfigError(
                f"{execution.pipeline.stages} stages for {len(space)} blocks: expected at most one "
                f"stage per block; choose --stages {len(space)} or less"
            )
        path = self.run.directory.path
        directory = SearchDirectory(search_path(path, self.name or default_name(path)))
        if directory.path.exists():
            directory.create()  # says that it is there
        check_endpoints(execution)
        check_limits(execution, 1)
        return directory

    def _definition(self) -> SearchDefinition:
        """With what follows from the rest: the strategy's size, what the held-out data are."""
        given, options = self.definition, dict(self.definition.options)
        if given.strategy == "evolution":
            options.setdefault("population", max(2, min(50, given.budget // 4)))
        record = getattr(self.held_out, "record", None)
        return replace(given, options=options, data=dict(record or {"name": "the user's own"}))

    def _plan(
        self, workload: Workload, costs: CostTable
    ) -> tuple[CutSteps, MemoryPlan | None, int]:
        """Cuts of equal forward time, memory for layers without optimizer state, the window."""
        space = workload.space
        rules = (Frozen(),) * len(space)
        chain = replace(Chain.of(space), rules=rules)
        sample = [
            space.subnet(FIRST_STREAM, number, space.chain(choices))
            for number, choices in enumerate(sample_stream(space))
        ]
        stream = Stream(chain, tuple(sample), costs, is_sample=True)
        plain = replace(workload.definition, recipe=Recipe())
        sizes = measured_sizes(replace(workload, definition=plain), self.execution)
        if sizes is not None:
            sizes = replace(sizes, rules=rules)
        execution = self.execution.changed(order="paper", activation_memory="")
        plan = plan_pipeline(Pipeline(streams=(stream,)), execution, sizes)
        cut = plan.streams[0].cut
        if cut is None:
            raise ConfigError("expected a partition for every subnet, found none")
        return cut, plan.memory, plan.window

    def _manifest(
        self, checkpoint: Checkpoint, definition: SearchDefinition, window: int
    ) -> dict[str, Any]:
        gpus = NO_GPUS if self.execution.hardware.device == "cpu" else find_gpus()
        return {
            "definition": definition.as_dict(),
            "run": {"subnets": checkpoint.subnets, "space": self.run.manifest["space"]},
            "execution": self.execution.changed(window=window).as_dict(),
            "environment": describe_environment(self.execution.hardware.device, gpus),
        }
