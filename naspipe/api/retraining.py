"""``naspipe.retrain_subnets``: train subnets of a search alone, to test the search's ranking.

They are trained concurrently, each as a separate stream, to fill the pipeline. Subnets that are
already trained are skipped; interrupted ones are resumed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from naspipe.api.attempts import RETRAIN
from naspipe.api.keywords import gathered
from naspipe.api.observers import watching
from naspipe.api.search import judge_subnets
from naspipe.api.search_parts import run_workload
from naspipe.api.search_record import SilentSearchObserver
from naspipe.api.start_state import IF_EXISTS, is_begun
from naspipe.api.training import Watch, start
from naspipe.checks.data import check_is_data
from naspipe.checks.fingerprint import check_run_loss
from naspipe.checks.loss import check_is_loss
from naspipe.config.definition import DATA_SIZES
from naspipe.config.errors import ConfigError
from naspipe.config.execution import Execution
from naspipe.config.recipe import Recipe
from naspipe.config.settings import declared, groups
from naspipe.config.steps import NO_PROBES
from naspipe.config.user_code import full_name
from naspipe.distill.distillation import Distillation
from naspipe.inputs.ends import with_loss_layer, with_run_loss
from naspipe.inputs.held_out import judged_by, part_of
from naspipe.inputs.run import Run, check_space
from naspipe.jobs.batches_apart import batch_apart
from naspipe.jobs.losses import Loss
from naspipe.jobs.workload import Batches, Workload
from naspipe.search.retrained import Retrained, Terms, append_retrained, chosen, read_retrained
from naspipe.search.search_directory import Search, SearchDefinition, newest_search
from naspipe.store.run_directory import RunDirectory
from naspipe.streams.stream_file import write_stream
from naspipe.wire.ports import LaunchObserver


def workload_alone(
    run: Run,
    choices: Sequence[int],
    data: Batches,
    loss: Loss,
    *,
    steps: int,
    seed: int | None = None,
    **recipe: Any,
) -> Workload:
    """Define a subnet's training from initial weights; ``recipe`` replaces recipe fields.

    Steps have one pass if each pass of the run's steps had its own subnet or was distilled from a
    larger one, because there are no other subnets to learn with; there are no probes. The ``seed``
    is the run's by default.
    """
    definition = run.manifest["definition"]
    own = Recipe(**{**definition["recipe"], **recipe})
    has_others = own.steps.distills or own.steps.draws_each
    own = replace(own, passes="one" if has_others else own.passes, probes=NO_PROBES)
    own.check_warmup(steps)
    alone = Workload.of(
        run.space,
        data,
        loss,
        recipe=own,
        steps=steps,
        sampler=f"only:{','.join(map(str, choices))}",
        seed=definition["seed"] if seed is None else seed,
        scale=definition["scale"],
        loss_fields=tuple(definition.get("loss_fields", ())),
    )
    return with_loss_layer(alone)


def retrain_subnets(
    run: Run,
    data: Batches,
    loss: Loss,
    *,
    steps: int,
    search: Search | None = None,
    best: int = 3,
    others: int = 5,
    held_out: Batches | None = None,
    validate: int | None = None,
    seed: int | None = None,
    stages: int | None = None,
    settings: Mapping[str, Any] | None = None,
    execution: Mapping[str, Any] | None = None,
    observer: LaunchObserver | None = None,
    progress: bool | None = None,
    **more: Any,
) -> list[Retrained]:
    """Train subnets of a search alone, from their initial weights, and judge them.

    With at least four, ``naspipe.search.retrained.confidence`` and ``naspipe report`` show how
    reliable the search's ranking is. Each is an ordinary run below the search's directory, with the
    bits of a plain loop over that subnet; subnets that are already trained are skipped.

    Args:
        run: that was searched.
        data, loss: those of the run.
        steps: of each subnet.
        search: whose subnets; the run's newest by default.
        best: number of the search's best subnets.
        others: number of subnets at even distances below them, down to the worst.
        held_out: ``held_out(seed, number)``, batches to judge by; ``data.validation`` by default.
        validate: number of batches of ``held_out``; 8, or all if there are fewer; 0 for all.
        seed: of initial weights and batches; the run's by default.
        stages: number of stage processes; 1 for this process.
        settings: settings of :class:`naspipe.Execution` by keys; likewise ``execution``.
        observer: receives the events of the training; ``progress`` is that of
            :func:`naspipe.train`.
        more: such settings as keywords.

    Raises:
        ConfigError: if the input cannot be used.
        LogError: if the records of the search are damaged.
        RunInterruptedError: with a checkpoint; the same call resumes.
        StageFailedError: if a layer, the data or the loss raises an error in any stage.
        StorageError: if a file cannot be written.
    """
    check_is_loss(loss)
    how = gathered(
        retrain_subnets,
        [*declared(Execution), *groups(Execution)],
        keywords={"stages": stages, **more},
        settings=settings,
        execution=execution,
    )
    run = with_run_loss(run, loss)
    check_run_loss(run.directory, run.space, loss)
    judges, count = judged_by(data, held_out, validate)
    return retrain(
        run,
        search or newest_search(run.path),
        data,
        loss,
        judges,
        count,
        steps=steps,
        seed=seed,
        best=best,
        others=others,
        execution=Execution(**how),
        watch=partial(watching, observer=observer, progress=progress),
    )


def retrain(
    run: Run,
    search: Search,
    data: Batches,
    loss: Loss,
    held_out: Batches,
    validation: int,
    *,
    steps: int,
    seed: int | None,
    best: int,
    others: int,
    execution: Execution,
    watch: Watch,
) -> list[Retrained]:
    """Train and judge the subnets that are not trained yet; return all of them, the best first.

    ``validation`` is the number of held-out batches. All else is as for :func:`retrain_subnets`.
    """
    seed = run.manifest["definition"]["seed"] if seed is None else seed
    check_space(run)
    run_workload(run, data, loss)
    definition = SearchDefinition(  # judges one subnet by its own running statistics
        strategy="file:", budget=1, calibration=0, validation=validation, ema=search.ema
    )
    check_is_data(held_out, "held_out")
    batch_apart(held_out, seed, 0)
    if steps < 1:
        raise ConfigError(f"--steps: expected 1 or more of each subnet, found {steps}")
    if best < 0 or others < 0 or not best + others:
        raise ConfigError(
            f"expected one subnet or more to retrain, found --best {best} and --others {others}"
        )
    if not search.path.resolve().is_relative_to(run.path.resolve()):
        raise ConfigError(f"expected a search of {run.path}, found {search.path}")
    if not search.ranked():
        raise ConfigError(f"{search.path}: expected a subnet with a {search.score}, found none")
    terms = Terms(steps, seed, f"{part_of(held_out, validation)} of {held_out_name(held_out)}")
    wanted = chosen(search, best, others)
    found = {each.subnet: each for each in read_retrained(search) if each.terms == terms}
    missing = [each for each in wanted if each.sequence_id not in found]
    places = {each: f"alone-{steps}-{seed}/subnet-{each.sequence_id}" for each in missing}
    source = {**(run.manifest.get("source") or {}), "command": RETRAIN}
    nonfinite = run.manifest["definition"]["recipe"]["nonfinite"]
    if nonfinite == "stop":  # one diverging subnet must not stop the others
        nonfinite = "keep"
    status = {each: status_of(RunDirectory(search.path / places[each])) for each in missing}
    begun = [each for each in missing if is_begun([status[each]])]
    left = [each for each in begun if status[each] != "complete"]
    for part in (left, [each for each in missing if each not in begun]):
        if not part:
            continue
        workloads = [
            workload_alone(
                run, each.choices, data, loss, steps=steps, seed=seed, nonfinite=nonfinite
            )
            for each in part
        ]
        start(
            Distillation(tuple(workloads), places=tuple(places[each] for each in part)),
            execution,
            search.path,
            watch=watch,
            resume=IF_EXISTS,
            sources=[source] * len(part),
        )
    for each in missing:
        alone = Run(run.space, search.path / places[each])
        listed = alone.path / "judged.jsonl"
        write_stream(listed, [each.choices])
        judged = judge_subnets(
            alone,
            data,
            held_out,
            loss,
            replace(definition, strategy=f"file:{listed}"),
            execution,
            observer=SilentSearchObserver(),
        )
        scores = judged.candidates[0].scores
        found[each.sequence_id] = Retrained(each.sequence_id, terms, scores, places[each])
        append_retrained(search.path, found[each.sequence_id])
    return [found[each.sequence_id] for each in wanted]


def held_out_name(held_out: Batches) -> str:
    """Return an identifier of held-out batches: their record, or the name of the function."""
    record = getattr(held_out, "record", {})
    known = [str(record[key]) for key in ("name", "split") if key in record]
    sizes = [f"{key} {record[key]}" for key in DATA_SIZES if key in record]
    return " ".join([*known, *sizes]) or full_name(held_out)


def status_of(directory: RunDirectory) -> str | None:
    """Return the status in a run's manifest; None without a manifest."""
    if not directory.manifest.exists():
        return None
    return str(directory.read_manifest().get("status"))
