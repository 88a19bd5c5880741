"""``naspipe.search_subnets``: find the best subnets of a run by scores with inherited weights.

All searches run in :func:`judge_subnets`: those of Python and of the command line, the ratings of
student blocks, and the scores of subnets that were trained alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import fields, replace
from typing import Any

from naspipe.api.judging import (
    Estimates,
    Judging,
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
    title_of,
)
from naspipe.api.search_record import Recorder, SearchObserver, SilentSearchObserver
from naspipe.checks.data import check_is_data
from naspipe.checks.fingerprint import check_run_loss
from naspipe.checks.inputs import check_proof
from naspipe.checks.loss import check_is_loss
from naspipe.checks.machine import check_data_path, check_device, check_limits
from naspipe.config.errors import ConfigError
from naspipe.config.execution import Execution
from naspipe.config.ids import FIRST_STREAM
from naspipe.config.recipe import Recipe
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
from naspipe.streams.feedback import ExplorationStrategy
from naspipe.verification.plain_scores import VerifiedScores
from naspipe.wire.endpoints import check_endpoints


def judge_subnets(
    run: Run,
    data: Batches,
    held_out: Batches,
    loss: Loss,
    definition: SearchDefinition,
    execution: Execution,
    *,
    name: str = "",
    observer: SearchObserver | None = None,
    is_quiet: bool = False,
    strategy: Any = None,
    judge: Callable[[Sequence[int]], float] | None = None,
) -> Search:
    """Check the input, judge every subnet, and write a search into the run.

    Args:
        run: whose weights are judged.
        data: the training data of the run, for calibration.
        held_out: batches to judge by.
        loss: of the run.
        definition: of the search.
        execution: how it is carried out.
        name: of the search's directory; by default the next number.
        observer: receives every subnet; by default, progress is shown on stderr.
        is_quiet: show no progress.
        strategy: the strategy if it is an object; the definition has its name.
        judge: decodes with a subnet of these choices, for the score ``bleu`` alone.

    Raises:
        ConfigError: if the input cannot be used. Nothing has been written, unless only a stage
            could detect the error; in that case the manifest has the status ``failed``.
        StageFailedError: if a stage raised an error.
        VerificationError: if a score is not bitwise equal to that of the plain network.
    """
    shown = None
    if observer is None:
        title = title_of(run.directory.path, definition, held_out)
        shown = observer = SearchProgress(title, definition.budget, definition.score, is_quiet)
    with shown or nullcontext():
        score, space = definition.score, run.space
        directory = _check(run, data, held_out, definition, execution, name)
        if (score == "bleu") != (judge is not None):
            raise ConfigError(
                "--score bleu: expected what decodes with a subnet, and no other score"
            )
        check_endpoints(execution)
        check_limits(execution, 1)
        workload = run_workload(run, data, loss)
        seed = workload.definition.seed
        check_proof(workload)
        checkpoint = find_weights(run)
        costs = forward_costs(measured_costs([workload], execution)[0])
        pricer = Pricer(space, batch_apart(held_out, seed, 0), costs)
        record = getattr(held_out, "record", None)
        options = dict(definition.options)
        if definition.strategy == "evolution":
            options.setdefault("population", max(2, min(50, definition.budget // 4)))
        definition = replace(
            definition, options=options, data=dict(record or {"name": "the user's own"})
        )
        make = find_strategy(definition, space, pricer, strategy)
        estimates = None
        if proxies_in(score):
            threads = workload.definition.recipe.threads
            estimates = Estimates(score, space, seed, threads, batch_apart(data, seed, 0))
            estimates.check()
        judging = Judging(score=score, space=space, estimates=estimates, bleu=judge)
        cut, memory, window = _plan(workload, costs, execution)
        directory.create()
        execution = execution.changed(window=window)
        device = execution.hardware.device
        manifest = {
            "definition": definition.as_dict(),
            "run": {"subnets": checkpoint.subnets, "space": run.manifest["space"]},
            "execution": execution.as_dict(),
            "environment": describe_environment(
                device, NO_GPUS if device == "cpu" else find_gpus()
            ),
        }
        recorder = Recorder(directory, score, pricer, observer, manifest)

        def source_of(
            make: Callable[[], ExplorationStrategy], record: str, num_subnets: int
        ) -> StrategySource:
            return StrategySource(
                make,
                space,
                FIRST_STREAM,
                cut,
                delay=definition.delay,
                num_subnets=num_subnets,
                record=directory.path / record,
            )

        source = source_of(make, "stream.jsonl", definition.budget)
        evaluation = EvaluationRecipe(
            workload=workload,
            held_out=held_out,
            calibration=definition.calibration,
            validation=definition.validation,
            ema=definition.ema,
        )
        job = EvaluationJob(
            evaluation=evaluation_of(evaluation, checkpoint),
            source=source,
            budget=definition.budget,
            execution=execution,
            memory=memory,
            directory=directory.path,
        )
        with (
            verifier_of(job, evaluation, checkpoint, score) as verifier,
            recorder.recording(judging.choices_of(source), verifier),
            ExitStack() as stack,
        ):
            stack.callback(close_all)
            drawn = replace(definition, strategy="random", options={}, budget=SAMPLE)
            standard = judging.standard(
                job, lambda: source_of(find_strategy(drawn, space, pricer), "sample.jsonl", SAMPLE)
            )
            if standard is not None:
                recorder.note(sample=standard.as_dict())
            recorder.stages = judging.run(job, source, recorder, standard)
            if execution.verification.verify != "0":
                recorder.note(verified=recorder.finish().as_dict())
        search = directory.read()
        if shown is not None and (found := search.manifest.get("verified")) is not None:
            shown.note(str(VerifiedScores(found["scores"], found.get("because", ""))))
        return search


def _check(
    run: Run,
    data: Batches,
    held_out: Batches,
    definition: SearchDefinition,
    execution: Execution,
    name: str,
) -> SearchDirectory:
    """Reject all input that can be rejected up front; return the directory of the search."""
    check_is_data(data)
    check_is_data(held_out, "held_out")
    check_space(run)
    if definition.ema:
        run.check_averages()
    device = execution.hardware.device
    gpus = NO_GPUS if device == "cpu" else find_gpus()
    check_device(device, len(gpus))
    check_data_path(execution, gpus)
    if execution.pipeline.stages > len(run.space):
        raise ConfigError(
            f"{execution.pipeline.stages} stages for {len(run.space)} blocks: expected at most one "
            f"stage per block; choose --stages {len(run.space)} or less"
        )
    path = run.directory.path
    directory = SearchDirectory(search_path(path, name or default_name(path)))
    if directory.path.exists():
        directory.create()  # raises an error because it exists
    return directory


def _plan(
    workload: Workload, costs: CostTable, execution: Execution
) -> tuple[CutSteps, MemoryPlan | None, int]:
    """Return cuts of equal forward time, memory without optimizer state, and the window."""
    space = workload.space
    rules = (Frozen(),) * len(space)
    sample = tuple(
        space.subnet(FIRST_STREAM, number, space.chain(choices))
        for number, choices in enumerate(sample_stream(space))
    )
    stream = Stream(replace(Chain.of(space), rules=rules), sample, costs, is_sample=True)
    plain = replace(workload.definition, recipe=Recipe())
    sizes = measured_sizes(replace(workload, definition=plain), execution)
    if sizes is not None:
        sizes = replace(sizes, rules=rules)
    execution = execution.changed(order="paper", activation_memory="")
    plan = plan_pipeline(Pipeline(streams=(stream,)), execution, sizes)
    cut = plan.streams[0].cut
    if cut is None:
        raise ConfigError("expected a partition for every subnet, found none")
    return cut, plan.memory, plan.window


def search_subnets(
    run: Run,
    data: Batches,
    loss: Loss,
    *,
    held_out: Batches | None = None,
    strategy: str | Any = "evolution",
    options: Mapping[str, float] | None = None,
    budget: int = 100,
    seed: int = 0,
    delay: int = 8,
    score: str = "loss",
    calibrate: int = 4,
    validate: int | None = None,
    limits: Mapping[str, float] | None = None,
    ema: bool = False,
    stages: int | None = None,
    name: str = "",
    settings: Mapping[str, Any] | None = None,
    execution: Mapping[str, Any] | None = None,
    observer: SearchObserver | None = None,
    progress: bool = True,
    **more: Any,
) -> Search:
    """Judge subnets of a run with its weights; the result is bitwise equal on any number of stages.

    The search is written into the run's directory, as ``search-NAME``.

    Args:
        run: with a final checkpoint, or an intermediate one.
        data, loss: those of the run.
        held_out: ``held_out(seed, number)``, batches to judge by; ``data.validation`` by default.
        strategy: ``random``, ``evolution``, ``nni:NAME``, ``MODULE:FUNCTION``, or ``file:PATH``; or
            an object, either of NNI or with ``propose`` and ``observe``, which is used as it is.
        options: of the strategy, such as ``population``.
        budget: number of subnets to judge.
        seed: of the strategy's draws.
        delay: number of subnets between a subnet and the first that is proposed with its score
            known.
        score: ``loss``, ``top1`` or ``top5``; ``synflow`` or ``naswot`` of the initial weights of
            layers (Tanaka et al. 2020, Mellor et al. 2021); or a sum, as in ``loss+naswot``.
        calibrate: number of batches of ``data`` for computing running statistics; 0 for the run's
            own.
        validate: number of batches of ``held_out``; 8, or all if there are fewer; 0 for all.
        limits: ``flops`` (of one sample), ``params``, ``latency_ms``.
        ema: judge by the moving averages of the weights.
        stages: number of stage processes; 1 for this process.
        name: of the search; the next number by default.
        settings: settings of :class:`naspipe.Execution` by keys; likewise ``execution``.
        observer: receives every subnet; it replaces progress on stderr.
        progress: False shows none.
        more: such settings as keywords, as in ``memory_budget="2x"``, and those of the strategy.

    Raises:
        ConfigError: if the input cannot be used.
        StageFailedError: if a layer, the data or the loss raises an error in any stage.
        VerificationError: with ``verify``, if the first or the best score is not bitwise equal to
            that of the plain network.
    """
    check_is_loss(loss)
    check_is_object(strategy)
    given, strategy = strategy, name_of(strategy)
    of_execution, of_strategy = [*declared(Execution), *groups(Execution)], options_of(strategy)
    if options and not of_strategy:
        raise ConfigError(f"strategy {strategy}: expected no options, found {options}")
    said = gathered(
        search_subnets,
        [*of_execution, *of_strategy],
        options=options,
        keywords={"stages": stages, **more},
        settings=settings,
        execution=execution,
    )
    how = Execution(**{key: value for key, value in said.items() if key in of_execution})
    costs = gathered(Limits, [each.name for each in fields(Limits)], limits=limits)
    run = with_run_loss(run, loss)
    check_run_loss(run.directory, run.space, loss)
    chosen, count = judged_by(data, held_out, validate)
    definition = SearchDefinition(
        strategy=strategy,
        options={key: value for key, value in said.items() if key not in of_execution},
        budget=budget,
        seed=seed,
        delay=delay,
        score=score,
        calibration=calibrate,
        validation=count,
        limits=Limits(**costs),
        ema=ema,
    )
    if observer is None and not progress:
        observer = SilentSearchObserver()
    return judge_subnets(
        run,
        data,
        chosen,
        loss,
        definition,
        how,
        name=name,
        observer=observer,
        strategy=None if isinstance(given, str) else given,
    )
