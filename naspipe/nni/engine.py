"""An execution engine of NNI's that hands every submitted model to whoever drives the strategy."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any


@cache
def engine_class() -> Any:
    """The class; made when NNI is there."""
    from nni.nas.execution import ExecutionEngine
    from nni.nas.execution.event import FinalMetricEvent, TrainingEndEvent
    from nni.nas.space import ModelStatus

    class SubnetEngine(ExecutionEngine):  # type: ignore[misc]
        """Submitting blocks until the model was taken; waiting blocks until scores are told.

        There is always an idle worker, and a budget until the end: no strategy sleeps.

        ``submit`` is called with each model, ``wait`` with a condition until which to wait.
        """

        def __init__(
            self, submit: Callable[[Any], None], wait: Callable[[Callable[[], bool]], None]
        ) -> None:
            super().__init__()
            self._submit = submit
            self._wait = wait
            self._models: list[Any] = []
            self.is_over = False

        def submit_models(self, *models: Any) -> None:
            """Hand models on."""
            for model in models:
                model.status = ModelStatus.Training
                self._models.append(model)
                self._submit(model)

        def wait_models(self, *models: Any) -> None:
            """Wait until these models, or all that were submitted, have their score."""
            awaited = models or tuple(self._models)
            self._wait(lambda: all(model.status.completed() for model in awaited))

        def list_models(self, status: Any = None) -> list[Any]:
            """The submitted models, with a status or all."""
            return [each for each in self._models if status is None or each.status == status]

        def idle_worker_available(self) -> bool:
            """Always: submitting blocks instead."""
            return True

        def budget_available(self) -> bool:
            """Until the strategy is to end."""
            return not self.is_over

        def finish(self, model: Any, score: float) -> None:
            """Tell the strategy how a model did."""
            self.dispatch_model_event(FinalMetricEvent(model, score))
            self.dispatch_model_event(TrainingEndEvent(model, ModelStatus.Trained))

        def reject(self, model: Any) -> None:
            """Tell the strategy that a model failed: it is not what is looked for."""
            self.dispatch_model_event(TrainingEndEvent(model, ModelStatus.Failed))

        def shutdown(self) -> None:
            """Nothing is left to end."""

    return SubnetEngine
