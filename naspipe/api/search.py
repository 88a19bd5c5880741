"""``naspipe.search_subnets``: the best subnets of a run, by the scores of inherited weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from naspipe.api.judging import (
    Estimates,
    FirstAndBest,
    Judging,
    note_verified,
    proxies_in,
    verifier_of,
)
from naspipe.api.keywords import gathered
from naspipe.api.planning import measured_costs, measured_sizes
from naspipe.api.progress import SearchProgress
from naspipe.api.search_parts import (
    Pricer,
    find_strategy,
    find_weights,
    forward_costs,
    run_workload,
    sampling,
    title_of,
)
from naspipe.api.search_record import Recorder, SearchObserver, SilentSearchObserver
from naspipe.checks.data import check_is_data
from naspipe.checks.fingerprint import check_run_loss
from naspipe.checks.inputs import check_proof
from naspipe.checks.loss import check_is_loss
from naspipe.checks.machine import check_data_path, check_device, check_limits
from naspipe.config.definition import Execution, Recipe
from naspipe.config.errors import ConfigError
from naspipe.config.ids import FIRST_STREAM
from naspipe.config.rules import Frozen
from naspipe.config.settings import declared, groups
from naspipe.data.loaders import close_all
from naspipe.evaluation.evaluation import evaluation_of
from naspipe.evaluation.evaluation_stage import EvaluationJob
from naspipe.inputs.ends import with_run_loss
from naspipe.inputs.held_out import judged_by
from naspipe.inputs.run import Run, check_space
from naspipe.inputs.strategies import check_is_object, name_of
from naspipe.inputs.subnet_sources import StrategySource, sample_stream
from naspipe.jobs.batches_apart import batch_apart
from naspipe.jobs.losses import Loss
from naspipe.jobs.workload import Batches, EvaluationRecipe, Workload
from naspipe.machine.determinism import describe_environment
from naspipe.machine.gpus import NO_GPUS, find_gpus
from naspipe.plan.chains import Chain, CutSteps, Stream
from naspipe.plan.costs import CostTable
from naspipe.plan.memory import MemoryPlan
from naspipe.plan.pipeline import Pipeline, plan_pipeline
from naspipe.search.scores import SAMPLE
from naspipe.search.search_directory import (
    Search,
    SearchDefinition,
    SearchDirectory,
    default_name,
    search_path,
)
from naspipe.search.strategies import Limits, options_of
from naspipe.store.checkpoints import Checkpoint
from naspipe.streams.feedback import ExplorationStrategy
from naspipe.wire.endpoints import check_endpoints


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


def search_subnets(
    run: Run, data: Batches, loss: Loss,
    *, held_out: Batches | None = None, strategy: str | Any = "evolution",
    options: Mapping[str, float] | None = None, budget: int = 100, seed: int = 0, delay: int = 8,
    score: str = "loss", calibrate: int = 4, validate: int | None = None,
    limits: Mapping[str, float] | None = None, ema: bool = False, stages: int | None = None,
    name: str = "", settings: Mapping[str, Any] | None = None,
    execution: Mapping[str, Any] | None = None, observer: SearchObserver | None = None,
    progress: bool = True, **more: Any,
) -> Search:  # fmt: skip
    """Judge subnets of a run with its weights; the same ones, bit for bit, on any number of stages.

    The search is written into the run's directory, as ``search-NAME``.

    Args:
        run: with a final checkpoint, or one on the way.
        data, loss: those of the run.
        held_out: ``held_out(seed, number)``, batches to judge by; ``data.validation`` by default.
        strategy: ``random``, ``evolution``, ``nni:NAME``, ``MODULE:FUNCTION``, or ``file:PATH``; or
            an object, of NNI's or with ``propose`` and ``observe``, which is used as it is.
        options: of the strategy, such as ``population``.
        budget: subnets to judge.
        seed: of the strategy's draws.
        delay: subnets from one to the first that is proposed with its score known.
        score: ``loss``, ``top1`` or ``top5``; ``synflow`` or ``naswot``, of the weights that layers
            begin with (Tanaka et al. 2020, Mellor et al. 2021); or a sum, as in ``loss+naswot``.
        calibrate: batches of ``data`` that running statistics are taken from; 0 for the run's own.
        validate: batches of ``held_out``; 8, or all where there are fewer; 0 for all.
        limits: ``flops`` (of one sample), ``params``, ``latency_ms``.
        ema: judge by the moving averages of the weights.
        stages, name: stage processes, 1 for this process; of the search, or the next number.
        settings: ``execution``, too; settings of :class:`naspipe.Execution` by keys.
        observer: told of every subnet, in place of progress on stderr.
        progress: False shows none.
        more: such settings as keywords, as in ``memory_budget="2x"``, and those of the strategy.

    Raises:
        ConfigError: for input that cannot be used.
        StageFailedError: when a layer, the data or the loss raises in any stage.
        VerificationError: with ``verify``, when the first or the best score has other bits than
            the plain network's.
    """
    check_is_loss(loss)
    check_is_object(strategy)
    given, strategy = strategy, name_of(strategy)
    said = {"keywords": {"stages": stages, **more}, "settings": settings, "execution": execution}
    chosen_options, how = _stated(strategy, options=options, **said)
    costs = gathered(Limits, [each.name for each in fields(Limits)], limits=limits)
    run = with_run_loss(run, loss)
    check_run_loss(run.directory, run.space, loss)
    chosen, count = judged_by(data, held_out, validate)
    definition = SearchDefinition(
        strategy=strategy, options=chosen_options, budget=budget, seed=seed, delay=delay,
        score=score, calibration=calibrate, validation=count, limits=Limits(**costs), ema=ema,
    )  # fmt: skip
    searching = Searching(
        run=run, data=data, held_out=chosen, loss=loss, definition=definition, name=name,
        execution=how, strategy=None if isinstance(given, str) else given,
        observer=observer or SilentSearchObserver(),
    )  # fmt: skip
    if observer is not None or not progress:
        return searching.start()
    return _shown(searching)


def _shown(searching: Searching) -> Search:
    """With progress on stderr."""
    asked = searching.definition
    title = title_of(searching.run.directory.path, asked, searching.held_out)
    with SearchProgress(title, asked.budget, asked.score) as shown:
        search = replace(searching, observer=shown).start()
        note_verified(search, shown)
        return search


def _stated(strategy: str, **said: Mapping[str, Any] | None) -> tuple[dict[str, Any], Execution]:
    """The options of the strategy and how stages work, from keywords and mappings together."""
    of_execution, of_strategy = [*declared(Execution), *groups(Execution)], options_of(strategy)
    if said["options"] and not of_strategy:
        raise ConfigError(f"strategy {strategy}: expected no options, found {said['options']}")
    given = gathered(search_subnets, [*of_execution, *of_strategy], **said)
    options = {key: value for key, value in given.items() if key not in of_execution}
    return options, Execution(**{key: given[key] for key in given.keys() - options.keys()})
