"""``naspipe.retrain_subnets``: subnets of a search alone, to see how far its ranking holds.

They are trained side by side, each a stream of its own, so that a pipeline has something to do.
What was trained already is not trained again; what was interrupted goes on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
from naspipe.config.definition import DATA_SIZES, Execution, Recipe
from naspipe.config.errors import ConfigError
from naspipe.config.settings import declared, groups
from naspipe.config.steps import NO_PROBES
from naspipe.config.user_code import full_name
from naspipe.distill.taught import Taught
from naspipe.inputs.ends import with_loss_layer, with_run_loss
from naspipe.inputs.held_out import judged_by, part_of
from naspipe.inputs.run import Run, check_space
from naspipe.jobs.batches_apart import batch_apart
from naspipe.jobs.losses import Loss
from naspipe.jobs.workload import Batches, Workload
from naspipe.search.retrained import Retrained, Terms, append_retrained, chosen, read_retrained
from naspipe.search.search_directory import Candidate, Search, SearchDefinition, newest_search
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
    """A subnet from its initial weights, with a run's recipe, in which ``recipe`` replaces fields.

    If each pass of the run's steps had a subnet of its own, or learned from a larger one, steps
    have one pass; nothing is probed. There are no other subnets to learn with. The ``seed`` is the
    run's by default.
    """
    definition = run.manifest["definition"]
    own = Recipe(**{**definition["recipe"], **recipe})
    has_others = own.steps.distills or own.steps.draws_each
    own = replace(own, passes="one" if has_others else own.passes, probes=NO_PROBES)
    own.check_warmup(steps)
    only = ",".join(map(str, choices))
    alone = Workload.of(
        run.space, data, loss, recipe=own, steps=steps, sampler=f"only:{only}",
        seed=definition["seed"] if seed is None else seed, scale=definition["scale"],
        loss_fields=tuple(definition.get("loss_fields", ())),
    )  # fmt: skip
    return with_loss_layer(alone)


def retrain_subnets(
    run: Run, data: Batches, loss: Loss,
    *, steps: int, search: Search | None = None, best: int = 3, others: int = 5,
    held_out: Batches | None = None, validate: int | None = None, seed: int | None = None,
    stages: int | None = None, settings: Mapping[str, Any] | None = None,
    execution: Mapping[str, Any] | None = None, observer: LaunchObserver | None = None,
    progress: bool | None = None, **more: Any,
) -> list[Retrained]:  # fmt: skip
    """Train subnets of a search alone, from their first weights, and judge them.

    With at least four, ``naspipe.search.retrained.confidence`` and ``naspipe report`` say how far
    the search's ranking holds. Each is an ordinary run below the search's directory, with the bits
    of a plain loop over that subnet; those that are there already are not trained again.

    Args:
        run: that was searched.
        data, loss: those of the run.
        steps: of each subnet.
        search: whose subnets; the run's newest by default.
        best: so many of the search's best.
        others: so many at even distances below them, down to the worst.
        held_out: ``held_out(seed, number)``, batches to judge by; ``data.validation`` by default.
        validate: batches of ``held_out``; 8, or all where there are fewer; 0 for all.
        seed: of first weights and batches; the run's by default.
        stages: stage processes, 1 for this process.
        settings: ``execution``, too; settings of :class:`naspipe.Execution` by keys.
        observer: told of the training; ``progress`` is that of :func:`naspipe.train`.
        more: such settings as keywords.

    Raises:
        ConfigError: for input that cannot be used.
        LogError: when what is kept of the search is damaged.
        RunInterruptedError: behind a checkpoint; the same call goes on.
        StageFailedError: when a layer, the data or the loss raises in any stage.
        StorageError: when a file cannot be written.
    """
    check_is_loss(loss)
    known = [*declared(Execution), *groups(Execution)]
    how = gathered(
        retrain_subnets, known, keywords={"stages": stages, **more}, settings=settings,
        execution=execution,
    )  # fmt: skip
    run = with_run_loss(run, loss)
    check_run_loss(run.directory, run.space, loss)
    judges, count = judged_by(data, held_out, validate)
    retraining = Retraining(
        run=run, search=search or newest_search(run.path), data=data, loss=loss, held_out=judges,
        validation=count, steps=steps, seed=seed, execution=Execution(**how),
        watch=partial(watching, observer=observer, progress=progress),
    )  # fmt: skip
    return retraining.start(best, others)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retraining:
    """Subnets of a search, to be trained alone."""

    run: Run
    search: Search
    data: Batches
    loss: Loss
    held_out: Batches
    """Batches to judge by."""
    validation: int
    """How many of them."""
    steps: int
    seed: int | None
    execution: Execution
    watch: Watch
    """Who is told of the training of streams on so many stages."""

    def start(self, best: int, others: int) -> list[Retrained]:
        """Train and judge what is not there yet; returns all of them, the best first.

        Raises:
            ConfigError: for input that cannot be used.
            LogError: when what is kept of the search is damaged.
            RunInterruptedError: behind a checkpoint; the same call goes on.
            StageFailedError: when a stage raised.
            StorageError: when a file cannot be written.
        """
        self._check(best, others)
        wanted = chosen(self.search, best, others)
        judged = read_retrained(self.search)
        found = {each.subnet: each for each in judged if each.terms == self.terms}
        missing = [each for each in wanted if each.sequence_id not in found]
        self._train(missing)
        for each in missing:
            found[each.sequence_id] = self._judge(each)
            append_retrained(self.search.path, found[each.sequence_id])
        return [found[each.sequence_id] for each in wanted]

    @property
    def terms(self) -> Terms:
        """What the subnets have in common."""
        seed = self.run.manifest["definition"]["seed"] if self.seed is None else self.seed
        part = part_of(self.held_out, self.validation)
        return Terms(self.steps, seed, f"{part} of {held_out_name(self.held_out)}")

    def _check(self, best: int, others: int) -> None:
        check_space(self.run)
        run_workload(self.run, self.data, self.loss)
        self._definition("file:")
        check_is_data(self.held_out, "held_out")
        batch_apart(self.held_out, self.terms.seed, 0)
        if self.steps < 1:
            raise ConfigError(f"--steps: expected 1 or more of each subnet, found {self.steps}")
        if best < 0 or others < 0 or not best + others:
            raise ConfigError(
                f"expected one subnet or more to retrain, found --best {best} and --others {others}"
            )
        if not self.search.path.resolve().is_relative_to(self.run.path.resolve()):
            raise ConfigError(f"expected a search of {self.run.path}, found {self.search.path}")
        if not self.search.ranked():
            raise ConfigError(
                f"{self.search.path}: expected a subnet with a {self.search.score}, found none"
            )

    def _place(self, each: Candidate) -> str:
        """Of its run, below the search's directory."""
        return f"alone-{self.terms.steps}-{self.terms.seed}/subnet-{each.sequence_id}"

    def _run_of(self, each: Candidate) -> Run:
        return Run(self.run.space, self.search.path / self._place(each))

    def _train(self, wanted: Sequence[Candidate]) -> None:
        """What is not complete: first what was interrupted, then what was not begun."""
        status = {each: status_of(self._run_of(each).directory) for each in wanted}
        begun = [each for each in wanted if is_begun([status[each]])]
        left = [each for each in begun if status[each] != "complete"]
        for part in (left, [each for each in wanted if each not in begun]):
            if part:
                self._train_together(part)

    def _train_together(self, part: Sequence[Candidate]) -> None:
        workloads = tuple(self._workload(each) for each in part)
        source = {**(self.run.manifest.get("source") or {}), "command": RETRAIN}
        start(
            Taught(workloads, places=tuple(self._place(each) for each in part)),
            self.execution,
            self.search.path,
            watch=self.watch,
            resume=IF_EXISTS,
            sources=[source] * len(part),
        )

    def _workload(self, each: Candidate) -> Workload:
        """One that diverges is no reason to stop the others: its scores are then none."""
        nonfinite = self.run.manifest["definition"]["recipe"]["nonfinite"]
        return workload_alone(
            self.run, each.choices, self.data, self.loss, steps=self.steps, seed=self.seed,
            nonfinite="keep" if nonfinite == "stop" else nonfinite,
        )  # fmt: skip

    def _judge(self, each: Candidate) -> Retrained:
        """By its own running statistics."""
        alone = self._run_of(each)
        listed = alone.path / "judged.jsonl"
        write_stream(listed, [each.choices])
        found = judge_subnets(
            alone,
            self.data,
            self.held_out,
            self.loss,
            self._definition(f"file:{listed}"),
            self.execution,
            observer=SilentSearchObserver(),
        )
        scores = found.candidates[0].scores
        return Retrained(each.sequence_id, self.terms, scores, self._place(each))

    def _definition(self, strategy: str) -> SearchDefinition:
        """Of what judges one subnet."""
        return SearchDefinition(
            strategy=strategy, budget=1, calibration=0, validation=self.validation,
            ema=self.search.ema,
        )  # fmt: skip


def held_out_name(held_out: Batches) -> str:
    """What tells held-out batches apart: their record, or the name of the function."""
    record = getattr(held_out, "record", {})
    known = [str(record[key]) for key in ("name", "split") if key in record]
    sizes = [f"{key} {record[key]}" for key in DATA_SIZES if key in record]
    return " ".join([*known, *sizes]) or full_name(held_out)


def status_of(directory: RunDirectory) -> str | None:
    """The status in a run's manifest; None if there is none."""
    if not directory.manifest.exists():
        return None
    return str(directory.read_manifest().get("status"))
