"""Runs in MLflow and Weights & Biases: an observer each; neither package is needed otherwise.

They are told the same numbers under the same names: ``loss``, a user's own ``metrics/NAME``,
``bubble_ratio``, ``validation/NAME``; of several streams behind ``stream-N/``. The step is the
sequence ID, which counts passes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any

from naspipe.config.errors import ConfigError
from naspipe.runtime.wire.reports import Observer

STEP = "sequence_id"
"""What W&B draws everything over; passes may be told in any order."""


def to_wandb(run: Any = None) -> Tracking:
    """An observer that logs to a run of Weights & Biases.

    Args:
        run: what ``wandb.init`` returned; by default the one that is active.

    Raises:
        ConfigError: without the package, or without a run.
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
    """An observer that logs to a run of MLflow.

    Args:
        run_id: by default that of the active run.

    Raises:
        ConfigError: without the package, or without a run.
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
    """A :class:`LaunchObserver` that hands on numbers; passes that are done again come again.

    Args:
        log: called with numbers by their names, and the sequence ID they belong to.
    """

    def __init__(self, log: Callable[[Mapping[str, float], int], None]) -> None:
        self._log = log
        self._metrics: dict[tuple[int, int], dict[str, float]] = {}
        self._busy: dict[int, tuple[int, int]] = {}
        self._has_several = False

    def on_begin(self, generation: int, firsts: Sequence[int]) -> None:
        """See :class:`LaunchObserver`."""
        self._metrics, self._busy = {}, {}
        self._has_several = len(firsts) > 1

    def on_metrics(self, stream: int, sequence_id: int, metrics: Mapping[str, float]) -> None:
        """See :class:`LaunchObserver`."""
        named = {f"metrics/{name}": value for name, value in metrics.items()}
        self._metrics[stream, sequence_id] = named

    def on_loss(self, stream: int, sequence_id: int, loss: float) -> None:
        """See :class:`LaunchObserver`."""
        values = {"loss": loss, **self._metrics.pop((stream, sequence_id), {})}
        if elapsed := sum(each[1] for each in self._busy.values()):
            values["bubble_ratio"] = 1.0 - sum(each[0] for each in self._busy.values()) / elapsed
        self._tell(stream, sequence_id, values)

    def on_busy(self, stage: int, busy_ns: int, elapsed_ns: int) -> None:
        """See :class:`LaunchObserver`."""
        self._busy[stage] = busy_ns, elapsed_ns

    def on_validation(self, stream: int, sequence_id: int, scores: Mapping[str, float]) -> None:
        """See :class:`LaunchObserver`."""
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
