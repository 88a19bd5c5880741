"""The observers of a run: its progress, an observer of the caller's, or both."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any

from naspipe.api.progress import TrainingProgress
from naspipe.config.errors import ConfigError, ObserverError
from naspipe.config.messages import in_python
from naspipe.config.user_code import users_code
from naspipe.jobs.workload import Workload
from naspipe.wire.ports import LaunchObserver
from naspipe.wire.reports import NotesToStderr, Observer

LINES_EVERY_SECONDS = 10.0


@contextmanager
def watching(
    workloads: Sequence[Workload],
    stages: int,
    observer: LaunchObserver | None = None,
    progress: bool | None = None,
) -> Iterator[LaunchObserver]:
    """Yield the observer of a run started from Python.

    By default, progress is shown if there is no ``observer``. Without both, notes go to stderr.
    """
    if not (observer is None if progress is None else progress):
        yield Told(observer or NotesToStderr())
        return
    with training_progress(workloads, stages) as shown:
        yield Told(shown, observer) if observer else Told(shown)


def training_progress(
    workloads: Sequence[Workload],
    stages: int,
    is_quiet: bool = False,
    every_seconds: float = LINES_EVERY_SECONDS,
    name: str = "",
) -> TrainingProgress:
    """Return the progress of streams that train together; ``name`` replaces their names."""
    trained = [workload for workload in workloads if workload.is_trained]
    name = name or " ".join(dict.fromkeys(workload.space.name for workload in trained))
    title = f"{name} on {stages} stage{'s' if stages > 1 else ''}"
    num_passes = sum(workload.definition.num_passes for workload in trained)
    has_passes = any(each.definition.recipe.steps.passes > 1 for each in trained)
    unit = "passes" if has_passes else "steps"
    return TrainingProgress(title, num_passes, is_quiet, every_seconds, unit)


class Told:
    """A :class:`LaunchObserver` that calls others; notes name Python's keywords.

    An observer that has raised an error is not called again.

    Raises:
        ObserverError: from every method, once per observer, if it raises an error.
    """

    def __init__(self, *observers: LaunchObserver) -> None:
        self._observers = list(observers)

    def on_begin(self, generation: int, firsts: Sequence[int]) -> None:
        self._tell("on_begin", lambda each: each.on_begin(generation, firsts))

    def on_loss(self, stream: int, sequence_id: int, loss: float) -> None:
        self._tell("on_loss", lambda each: each.on_loss(stream, sequence_id, loss))

    def on_metrics(self, stream: int, sequence_id: int, metrics: Mapping[str, float]) -> None:
        self._tell("on_metrics", lambda each: each.on_metrics(stream, sequence_id, metrics))

    def on_busy(self, stage: int, busy_ns: int, elapsed_ns: int) -> None:
        self._tell("on_busy", lambda each: each.on_busy(stage, busy_ns, elapsed_ns))

    def on_hits(self, stage: int, hits: int, reads: int) -> None:
        self._tell("on_hits", lambda each: each.on_hits(stage, hits, reads))

    def on_validation(self, stream: int, sequence_id: int, scores: Mapping[str, float]) -> None:
        self._tell("on_validation", lambda each: each.on_validation(stream, sequence_id, scores))

    def on_note(self, text: str) -> None:
        self._tell("on_note", lambda each: each.on_note(in_python(text)))

    def _tell(self, what: str, call: Callable[[LaunchObserver], None]) -> None:
        for each in tuple(self._observers):
            try:
                with users_code(f"observer {type(each).__name__}: {what} raised"):
                    call(each)
            except ConfigError as error:
                self._observers.remove(each)
                raise ObserverError(str(error)) from error.__cause__


STEP = "sequence_id"
"""The step metric of W&B; passes may be reported in any order."""


def to_wandb(run: Any = None) -> Tracking:
    """Return an observer that logs to a run of Weights & Biases.

    Args:
        run: the return value of ``wandb.init``; by default the active run.

    Raises:
        ConfigError: if the package is missing or there is no run.
    """
    wandb = _package("wandb")
    run = run or wandb.run
    if run is None:
        raise ConfigError("to_wandb: expected a run, found none; call wandb.init(...) before")
    run.define_metric("*", step_metric=STEP)

    def log(values: Mapping[str, float], sequence_id: int) -> None:
        run.log({**values, STEP: sequence_id})

    return Tracking(log)


def to_mlflow(run_id: str | None = None) -> Tracking:
    """Return an observer that logs to a run of MLflow.

    Args:
        run_id: by default that of the active run.

    Raises:
        ConfigError: if the package is missing or there is no run.
    """
    mlflow = _package("mlflow")
    active = mlflow.active_run()
    if run_id is None and active is None:
        raise ConfigError("to_mlflow: expected a run, found none; call mlflow.start_run() before")
    chosen = run_id or active.info.run_id

    def log(values: Mapping[str, float], sequence_id: int) -> None:
        mlflow.log_metrics(dict(values), step=sequence_id, run_id=chosen)

    return Tracking(log)


class Tracking(Observer):
    """A :class:`LaunchObserver` that calls ``log`` with numbers by name and their sequence ID.

    Passes that are repeated after a restart are logged again.
    """

    def __init__(self, log: Callable[[Mapping[str, float], int], None]) -> None:
        self._log = log
        self._metrics: dict[tuple[int, int], dict[str, float]] = {}
        self._busy: dict[int, tuple[int, int]] = {}
        self._has_several = False

    def on_begin(self, generation: int, firsts: Sequence[int]) -> None:
        self._metrics, self._busy = {}, {}
        self._has_several = len(firsts) > 1

    def on_metrics(self, stream: int, sequence_id: int, metrics: Mapping[str, float]) -> None:
        named = {f"metrics/{name}": value for name, value in metrics.items()}
        self._metrics[stream, sequence_id] = named

    def on_loss(self, stream: int, sequence_id: int, loss: float) -> None:
        values = {"loss": loss, **self._metrics.pop((stream, sequence_id), {})}
        if elapsed := sum(each[1] for each in self._busy.values()):
            values["bubble_ratio"] = 1.0 - sum(each[0] for each in self._busy.values()) / elapsed
        self._tell(stream, sequence_id, values)

    def on_busy(self, stage: int, busy_ns: int, elapsed_ns: int) -> None:
        self._busy[stage] = busy_ns, elapsed_ns

    def on_validation(self, stream: int, sequence_id: int, scores: Mapping[str, float]) -> None:
        named = {f"validation/{name}": score for name, score in scores.items()}
        self._tell(stream, sequence_id, named)

    def _tell(self, stream: int, sequence_id: int, values: Mapping[str, float]) -> None:
        prefix = f"stream-{stream}/" if self._has_several else ""
        self._log({f"{prefix}{name}": value for name, value in values.items()}, sequence_id)


def _package(name: str) -> ModuleType:
    try:
        return import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"to_{name}: expected the package {name} ({error}); install it with pip install {name}"
        ) from error
