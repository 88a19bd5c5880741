"""``naspipe.nni.NasExperiment``: an NNI experiment with one supernet instead of trials."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader, RandomSampler, SequentialSampler, default_collate

from naspipe.api.search import search_subnets
from naspipe.api.train import train
from naspipe.config.errors import ConfigError
from naspipe.config.messages import says_keywords
from naspipe.data.dataset_batches import DatasetBatches, from_dataset
from naspipe.export.nni_form import to_nni
from naspipe.inputs.run import Run
from naspipe.inputs.strategies import check_is_object
from naspipe.jobs.losses import Loss
from naspipe.jobs.workload import Batches
from naspipe.nni.adapter import from_nni
from naspipe.nni.strategies import check_explores, experiment_config, is_strategy
from naspipe.search.scores import check_score
from naspipe.search.search_directory import Search
from naspipe.store.run_directory import RunDirectory

VALIDATE = 8
"""Number of held-out batches if the data do not state their number."""

UNHEEDED = (
    ("accumulate_grad_batches", (None, 1), "passes='accumulate:N'"),
    ("gradient_clip_val", (None, 0), "clip_global_norm=..."),
    ("precision", (None, 32, "32", "32-true"), "precision='bf16'"),
)
"""Options of a Trainer that change what is trained, their usual values, and naspipe's options."""

OWN = ("data", "loss", "steps", "held_out", "score")
"""Settings that an evaluator must have if it is a function."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """The training of one supernet, and how its subnets are evaluated."""

    data: Batches
    held_out: Batches
    loss: Loss
    steps: int
    why: str
    """The reason for the number of steps."""
    score: str
    validate: int
    """Number of held-out batches."""
    training: Mapping[str, Any] = field(default_factory=dict)
    """Further keywords of :func:`naspipe.train`."""


def evaluated(evaluator: Any, given: Mapping[str, Any]) -> Evaluated:
    """Translate an evaluator.

    Args:
        evaluator: ``Classification``, ``Regression``, or a ``FunctionalEvaluator``, whose function
            is never called: ``data``, ``loss`` and ``steps`` replace it.
        given: values by the names of :data:`OWN`, which override the evaluator's.
    """
    check_score(given.get("score", "loss"))
    bases = {base.__name__ for base in type(evaluator).__mro__}
    for name, score in (("Classification", "top1"), ("Regression", "loss")):
        if name in bases:
            return _of_lightning(evaluator, score, given)
    if "FunctionalEvaluator" in bases:
        arguments = {key: each for key, each in evaluator.arguments.items() if key in OWN}
        return _of_function({**arguments, **given})
    raise ConfigError(
        f"evaluator: expected Classification, Regression or FunctionalEvaluator of NNI's, found "
        f"{type(evaluator).__name__}; naspipe.train takes data and a loss of any kind"
    )


def _of_function(given: Mapping[str, Any]) -> Evaluated:
    if missing := [name for name in ("data", "loss", "steps") if given.get(name) is None]:
        raise ConfigError(
            f"FunctionalEvaluator: its function trains one model, and a supernet is trained by "
            f"steps: expected data=, loss= and steps= beside it, as in NasExperiment(space, "
            f"evaluator, strategy, data=..., loss=..., steps=1000), found no {missing[0]}"
        )
    data = given["data"]
    held_out = given.get("held_out") or getattr(data, "validation", None) or data
    return Evaluated(
        data=data, held_out=held_out, loss=given["loss"], steps=given["steps"], why="steps=",
        score=given.get("score", "loss"), validate=_validate(held_out),
    )  # fmt: skip


def _of_lightning(evaluator: Any, score: str, given: Mapping[str, Any]) -> Evaluated:
    if evaluator.is_mutable():
        raise ConfigError(
            f"evaluator {type(evaluator).__name__}: expected values, found choices of its own "
            f"(nni.choice): one supernet is trained, with one rate; give one value for each"
        )
    if evaluator.datamodule is not None or evaluator.train_dataloaders is None:
        raise ConfigError(
            f"{type(evaluator).__name__}: expected train_dataloaders, a DataLoader, found "
            f"{'a datamodule' if evaluator.datamodule is not None else 'none'}"
        )
    data = given.get("data") or batches_of(evaluator.train_dataloaders)
    held_out = given.get("held_out") or data
    if evaluator.val_dataloaders is not None and not given.get("held_out"):
        held_out = batches_of(evaluator.val_dataloaders)
    module, trainer = evaluator.module, evaluator.trainer
    _check_heeded(trainer)
    rates = module.hparams
    steps, why = (given["steps"], "steps=") if given.get("steps") else _steps(trainer, data)
    return Evaluated(
        data=data,
        held_out=held_out,
        loss=given.get("loss") or module.criterion,
        steps=steps,
        why=why,
        score=given.get("score", score),
        validate=_limited(trainer.limit_val_batches, _validate(held_out)),
        training={
            "optimizer": module.optimizer,
            "lr": rates.learning_rate,
            "optimizer_options": {"weight_decay": rates.weight_decay},
        },
    )


def batches_of(loader: Any) -> DatasetBatches:
    """Return the data set of a ``DataLoader`` in batches of its size, with the same shuffling."""
    if isinstance(loader, list | tuple) and len(loader) == 1:
        loader = loader[0]
    if not isinstance(loader, DataLoader):
        raise ConfigError(
            f"evaluator: expected a torch DataLoader, found {type(loader).__name__}; give data= "
            f"and held_out= to NasExperiment"
        )
    if loader.batch_size is None or type(loader.sampler) not in (RandomSampler, SequentialSampler):
        raise ConfigError(
            f"evaluator: expected a DataLoader with batch_size and shuffle, found the sampler "
            f"{type(loader.sampler).__name__}; give data= to NasExperiment"
        )
    collate = loader.collate_fn
    return from_dataset(
        loader.dataset, loader.batch_size, shuffle=type(loader.sampler) is RandomSampler,
        drop_last=loader.drop_last, workers=loader.num_workers,
        collate_fn=None if collate is default_collate else collate,
    )  # fmt: skip


def _check_heeded(trainer: Any) -> None:
    """Reject Lightning options that would otherwise be ignored."""
    for name, usual, instead in UNHEEDED:
        if (found := getattr(trainer, name, None)) not in usual:
            raise ConfigError(
                f"evaluator: expected no {name}, found {found!r:.40}; leave it out there, and give "
                f"{instead} to NasExperiment"
            )
    if any(type(each).__name__ == "Timer" for each in getattr(trainer, "callbacks", ())):
        raise ConfigError(
            "evaluator: expected max_epochs or max_steps, found max_time; how long things take "
            "must not decide what is trained"
        )


LIGHTNINGS_EPOCHS = 1000
"""Lightning's default if neither epochs nor steps are given."""


def _steps(trainer: Any, data: Any) -> tuple[int, str]:
    """Return the number of steps of one NNI trial, as Lightning counts them, and the reason."""
    epochs, most = trainer.max_epochs, trainer.max_steps
    batches = _limited(trainer.limit_train_batches, data.batches_per_epoch)
    why = f"max_epochs={epochs}, {batches} batches each"
    if epochs is None:
        epochs = LIGHTNINGS_EPOCHS if most == -1 else -1
        why = (
            f"{epochs} epochs of {batches} batches, as Lightning has it without max_epochs and "
            f"max_steps; give the evaluator one of them, or NasExperiment steps="
        )
    steps = batches * epochs if epochs >= 0 else -1
    if most >= 0 and (steps < 0 or most < steps):
        steps, why = most, f"max_steps={most}"
    if steps < 1:
        raise ConfigError(
            f"evaluator: expected max_epochs or max_steps that train something, found "
            f"max_epochs={trainer.max_epochs} and max_steps={most}; give steps= to NasExperiment"
        )
    return int(steps), why


def _limited(limit: int | float | None, batches: int) -> int:
    """Apply a Lightning limit: a number of batches, or a fraction of them."""
    if limit is None:
        return batches
    return min(batches, limit) if type(limit) is int else max(1, int(batches * limit))


def _validate(held_out: Any) -> int:
    return int(getattr(held_out, "batches_per_epoch", VALIDATE))


CALIBRATE = 4
"""Number of batches from which a model's running statistics are computed."""


class NasExperiment:
    """Runs a script that was written for ``nni.nas.experiment.NasExperiment``.

    It trains one supernet, whose weights all models share, and lets the strategy explore its
    subnets by their scores: ``config.max_trial_number`` models are evaluated, not trained.

    Args:
        model_space: one of NNI's, or your own.
        evaluator: ``Classification``, ``Regression``, or ``FunctionalEvaluator``.
        strategy: one of NNI's multi-trial strategies; it is used as it is.
        config: a ``NasExperimentConfig``; ``max_trial_number`` and ``trial_concurrency`` are used.
        id: of the experiment, for :meth:`resume`; by default the space's name and the time.
        settings: ``data``, ``loss``, ``steps``, ``held_out`` and ``score`` override the
            evaluator's; ``directory`` (``runs``), ``stages``, and others of :func:`naspipe.train`.

    Raises:
        ConfigError: for a feature without a counterpart; the message has an alternative.
    """

    def __init__(
        self,
        model_space: Any,
        evaluator: Any,
        strategy: Any,
        config: Any = None,
        id: str | None = None,
        **settings: Any,
    ) -> None:
        check_is_object(strategy)
        if not is_strategy(strategy):
            raise ConfigError(
                f"strategy: expected an object of NNI's, as in RegularizedEvolution(), found "
                f"{f'{strategy!r:.80}' if isinstance(strategy, str) else type(strategy).__name__}; "
                f"naspipe.search_subnets takes any, and names"
            )
        check_explores(strategy, 0, sys.maxsize, is_begun=False)
        self.model_space, self.evaluator, self.strategy = model_space, evaluator, strategy
        self.config = config or experiment_config(model_space, evaluator, strategy)
        name = type(model_space).__name__
        self.id = id or f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
        own = {key: settings.pop(key) for key in OWN if key in settings}
        self.path = Path(settings.pop("directory", "runs")) / self.id
        self._settings = settings
        self._evaluated: Evaluated = evaluated(evaluator, own)
        self._space = from_nni(model_space)
        self._search: Search | None = None
        self._run: Run | None = None

    @says_keywords
    def run(self, port: int = 8080, wait_completion: bool = True, debug: bool = False) -> bool:
        """Train the supernet, then explore it; the arguments are unused, as no server is started.

        Raises:
            ConfigError, StageFailedError: see :func:`naspipe.train`.
        """
        return self._go(resumes=False)

    start = run

    @says_keywords
    def resume(self, port: int = 8080, wait_completion: bool = True, debug: bool = False) -> bool:
        """Continue the experiment with this ``id`` from its last checkpoint; see :meth:`run`."""
        return self._go(resumes=True)

    def stop(self) -> None:
        """Do nothing, because nothing is left running."""

    def export_top_models(self, top_k: int = 1, *, formatter: str | None = None) -> list[Any]:
        """Return the best models, without duplicates.

        Args:
            top_k: number of models.
            formatter: ``dict`` for samples, ``instance`` for NNI's models with the weights of the
                supernet, in evaluation mode; None for NNI's own objects.

        Raises:
            ConfigError: before the experiment has run, or for another formatter.
        """
        if self._search is None or self._run is None:
            raise ConfigError("export_top_models: expected an experiment that has run; call run()")
        if formatter not in (None, "dict", "instance"):
            raise ConfigError(
                f"formatter: expected 'dict', 'instance' or None, found {formatter!r:.80}; "
                f"naspipe.export_subnet writes code"
            )
        models = list(islice(self._unique(), top_k))
        if formatter is None:
            return models
        if formatter == "dict":
            return [model.sample for model in models]
        data = self._evaluated.data
        return [to_nni(self._run, each.sample, data=data, calibrate=CALIBRATE) for each in models]

    def _go(self, *, resumes: bool) -> bool:
        budget = self.config.max_trial_number
        if budget is None:
            raise ConfigError(
                "NasExperiment: expected how many models to judge, as in "
                "exp.config.max_trial_number = 100, found none"
            )
        if self.config.max_experiment_duration is not None:
            raise ConfigError(
                "NasExperiment: expected max_trial_number alone, found max_experiment_duration, "
                "too; how long things take must not decide what is found"
            )
        is_there = RunDirectory(self.path).is_used
        if is_there and not resumes:
            raise ConfigError(
                f"experiment {self.id} is there already, in {self.path}: go on with it by "
                f"resume(), or choose another id="
            )
        delay, what = (self.config.trial_concurrency or 1) - 1, self._evaluated
        check_explores(self.strategy, delay, budget, is_begun=False)
        print(
            f"naspipe: one supernet of {self._space.name} is trained for {what.steps} steps "
            f"({what.why}), and {budget} models are judged with its weights, not trained: "
            f"{self.path}",
            file=sys.stderr, flush=True,
        )  # fmt: skip
        if what.held_out is what.data:
            print(
                "naspipe: models are judged by the data that they are trained on; give "
                "val_dataloaders to the evaluator, or held_out= to NasExperiment",
                file=sys.stderr, flush=True,
            )  # fmt: skip
        self._run = train(
            self._space, what.data, what.loss, steps=what.steps, run_dir=self.path,
            resume=is_there, **{**what.training, **self._settings},
        )  # fmt: skip
        self._search = search_subnets(
            self._run, what.data, what.loss, held_out=what.held_out, strategy=self.strategy,
            budget=budget, delay=delay, score=what.score, validate=what.validate,
            calibrate=CALIBRATE, stages=self._settings.get("stages"),
            progress=self._settings.get("progress", True),
        )  # fmt: skip
        return True

    def _unique(self) -> Iterator[Any]:
        seen, decisions = set(), self._space.decisions
        for model in self.strategy.list_models():
            choices = decisions.choices_of(model.sample) if decisions else ()
            if choices not in seen:
                seen.add(choices)
                yield model
