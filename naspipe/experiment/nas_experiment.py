"""``naspipe.nni.NasExperiment``: an experiment of NNI's, with one supernet in place of trials."""

from __future__ import annotations

import sys
import time
from itertools import islice
from pathlib import Path
from typing import Any

from naspipe.config.errors import ConfigError
from naspipe.config.messages import says_keywords
from naspipe.experiment.evaluators import OWN, Evaluated, evaluated
from naspipe.export.nni_form import to_nni
from naspipe.frontend.given.run import Run
from naspipe.frontend.given.strategies import check_is_object
from naspipe.frontend.search.api import search_subnets
from naspipe.frontend.training.api import train
from naspipe.nni.adapter import from_nni
from naspipe.nni.strategies import check_explores, experiment_config, is_strategy
from naspipe.search.search_directory import Search
from naspipe.trace.results.run_directory import RunDirectory

CALIBRATE = 4
"""Batches that a model's running statistics are taken from."""


class NasExperiment:
    """Runs a script that was written for ``nni.nas.experiment.NasExperiment``.

    It trains one supernet, whose weights all models share, and lets the strategy explore its
    subnets by how they do with them: ``config.max_trial_number`` models are judged, not trained.

    Args:
        model_space: of NNI's, or one's own.
        evaluator: ``Classification``, ``Regression``, or ``FunctionalEvaluator``.
        strategy: one of NNI's multi-trial strategies; it is used as it is.
        config: a ``NasExperimentConfig``; ``max_trial_number`` and ``trial_concurrency`` count.
        id: of the experiment, which :meth:`resume` finds; the space's name and the time by default.
        settings: ``data``, ``loss``, ``steps``, ``held_out`` and ``score`` in place of the
            evaluator's, ``directory`` (``runs``), ``stages``, and others of :func:`naspipe.train`.

    Raises:
        ConfigError: for what has no counterpart, with what to use.
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
        """Train the supernet, then explore it; no server is started, so the arguments are unused.

        Raises:
            ConfigError, StageFailedError: see :func:`naspipe.train`.
        """
        return self._go(resumes=False)

    start = run

    @says_keywords
    def resume(self, port: int = 8080, wait_completion: bool = True, debug: bool = False) -> bool:
        """Go on with the experiment of this ``id``, from its last checkpoint; as :meth:`run`."""
        return self._go(resumes=True)

    def stop(self) -> None:
        """Nothing is left running."""

    def export_top_models(self, top_k: int = 1, *, formatter: str | None = None) -> list[Any]:
        """The best models, each once.

        Args:
            top_k: how many.
            formatter: ``dict`` for samples, ``instance`` for models of NNI's with the weights that
                the supernet's training left, in evaluation mode; None for NNI's own objects.

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

    def _unique(self) -> Any:
        seen = set()
        for model in self.strategy.list_models():
            choices = self._choices(model.sample)
            if choices not in seen:
                seen.add(choices)
                yield model

    def _choices(self, sample: Any) -> tuple[int, ...]:
        decisions = self._space.decisions
        return decisions.choices_of(sample) if decisions else ()
