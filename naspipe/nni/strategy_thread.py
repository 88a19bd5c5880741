"""Runs an NNI strategy unchanged: the models that it submits are the subnets of a stream.

The strategy runs on a separate thread, but never at the same time as the thread that drives it: one
of them passes control to the other and waits. Scores are reported to the strategy only then, in
sequence order, so that its proposals depend only on its seed and the scores, never on the number of
workers or on timing. A custom NNI execution engine passes on every model that is submitted.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from queue import SimpleQueue
from typing import Any

from naspipe.config.errors import ConfigError
from naspipe.machine.determinism import Randomness

# The execution engine


@cache
def engine_class() -> Any:
    from nni.nas.execution import ExecutionEngine
    from nni.nas.execution.event import FinalMetricEvent, TrainingEndEvent
    from nni.nas.space import ModelStatus

    class SubnetEngine(ExecutionEngine):  # type: ignore[misc]
        """Submitting blocks until the model is taken; waiting blocks until scores are reported.

        There is always an idle worker, and a budget until the end, so no strategy sleeps.

        ``submit`` is called with each model, ``wait`` with a condition to wait for.
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
            for model in models:
                model.status = ModelStatus.Training
                self._models.append(model)
                self._submit(model)

        def wait_models(self, *models: Any) -> None:
            awaited = models or tuple(self._models)
            self._wait(lambda: all(model.status.completed() for model in awaited))

        def list_models(self, status: Any = None) -> list[Any]:
            return [each for each in self._models if status is None or each.status == status]

        def idle_worker_available(self) -> bool:
            return True  # submitting blocks instead

        def budget_available(self) -> bool:
            return not self.is_over

        def finish(self, model: Any, score: float) -> None:
            self.dispatch_model_event(FinalMetricEvent(model, score))
            self.dispatch_model_event(TrainingEndEvent(model, ModelStatus.Trained))

        def reject(self, model: Any) -> None:
            """Report to the strategy that a model failed, because it is not within the limits."""
            self.dispatch_model_event(TrainingEndEvent(model, ModelStatus.Failed))

        def shutdown(self) -> None:
            """Do nothing, because nothing has to be stopped."""

    return SubnetEngine


# The strategy


END_SECONDS = 60.0
"""Maximum time for a strategy to end after it was asked to."""

REJECTIONS = 10_000
"""Consecutive subnets outside the limits after which the limits are considered impossible."""

_DEDUP = "_dedup_helper"
"""Attribute of those NNI strategies that propose each subnet only once."""


class _Ended(BaseException):
    """Raised inside a strategy to end it."""


class NniStrategy:
    """An :class:`naspipe.streams.feedback.ExplorationStrategy` around an NNI strategy.

    Scores are reported unchanged: more is better, as in most of NNI's strategies.

    Args:
        strategy: a strategy that has not run yet.
        model_space: the space to explore, in NNI's simplified form.
        to_numbers: converts a sample of NNI's to decisions.
        seed: seed of the global generators, for strategies that use them.
        allows: returns True if decisions are within the limits; None if there are no limits.
    """

    def __init__(
        self,
        strategy: Any,
        model_space: Any,
        to_numbers: Callable[[Mapping[str, Any]], tuple[int, ...]],
        seed: int,
        allows: Callable[[Sequence[int]], bool] | None = None,
    ) -> None:
        self._strategy = strategy
        self._space = model_space
        self._to_numbers = to_numbers
        self._allows = allows
        self._randomness = Randomness(seed)
        self._requests: SimpleQueue[tuple[str, Any]] = SimpleQueue()
        self._answers: SimpleQueue[Any] = SimpleQueue()
        self._engine = engine_class()(self._submit, self._wait)
        self._under_way: dict[int, Any] = {}
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    def propose(self, sequence_id: int) -> tuple[int, ...] | None:
        """See :class:`ExplorationStrategy`.

        Raises:
            ConfigError: if the strategy has ended because its space is exhausted, or if none of its
                proposals is within the limits.
            Exception: whatever the strategy raises.
        """
        if self._engine.is_over:
            raise ConfigError(
                f"strategy {type(self._strategy).__name__} of NNI has ended with the stream that "
                f"it explored; NNI's strategies run once, so make a new one"
            )
        for _ in range(REJECTIONS):
            model = self._ask("propose", None)
            if model is None:
                return None
            if (numbers := self._allowed(dict(model.sample))) is not None:
                self._under_way[sequence_id] = model
                return numbers
            self._ask("reject", model)
        raise ConfigError(
            f"strategy {type(self._strategy).__name__} of NNI proposed no subnet within the limits "
            f"{REJECTIONS} times; raise --max-flops, --max-params or --max-latency-ms"
        )

    def _allowed(self, sample: Mapping[str, Any]) -> tuple[int, ...] | None:
        """Return the decisions of a subnet; None for one that must not be evaluated."""
        try:
            numbers = self._to_numbers(sample)
        except ValueError:
            return None  # an InputChoice of any number of inputs has chosen none
        return numbers if self._allows is None or self._allows(numbers) else None

    def observe(self, sequence_id: int, score: float) -> None:
        """See :class:`ExplorationStrategy`; raises like :meth:`propose`."""
        self._ask("observe", (self._under_way.pop(sequence_id), score))

    def finish(self) -> None:
        """Stop requesting subnets: the strategy ends by itself, as if its budget were used up."""
        self._engine.is_over = True
        with self._randomness.in_use(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if self._thread is not None and self._thread.is_alive():
                self._requests.put(("finish", None))
                self._thread.join(END_SECONDS)
        self._thread = None

    def close(self) -> None:
        """End the strategy at any point."""
        if self._thread is not None and self._thread.is_alive():
            self._requests.put(("end", None))
            self._thread.join(END_SECONDS)
        self._thread = None

    def _ask(self, what: str, subject: Any) -> Any:
        """Let the strategy run until it has an answer."""
        with self._randomness.in_use(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="nni-strategy", daemon=True)
                self._thread.start()
            if not self._thread.is_alive() and self._answers.empty():
                self._raise_end(what)
                return None
            self._requests.put((what, subject))
            is_answer, answer = self._answers.get()
        if not is_answer:
            self._raise_end(what)
        return answer

    def _raise_end(self, what: str) -> None:
        """Report that the strategy has ended, unless the request only reports a score."""
        if self._failure is not None:
            raise self._failure
        if what == "propose":
            name = type(self._strategy).__name__
            also = ", or make it with dedup=False" if hasattr(self._strategy, _DEDUP) else ""
            within = " within the limits" if self._allows else ""
            raise ConfigError(
                f"strategy {name} of NNI ended by itself: it has no subnet{within} that it did not "
                f"propose before; ask for fewer steps{also}"
            )

    def _run(self) -> None:
        try:
            self._serve(lambda: True)
            self._strategy(self._space, self._engine)
            self._engine.wait_models()
        except _Ended:
            return
        except BaseException as error:
            self._failure = error
        self._answers.put((False, None))

    def _submit(self, model: Any) -> None:
        """Pass on a model of the strategy, and continue at the next request for one."""
        if self._engine.is_over:
            raise _Ended
        self._answers.put((True, model))
        self._serve(lambda: True)

    def _wait(self, holds: Callable[[], bool]) -> None:
        """Propose nothing until the strategy has the scores that it waits for."""
        if holds():
            return
        if self._engine.is_over:
            raise _Ended
        self._answers.put((True, None))
        self._serve(holds)

    def _serve(self, may_go_on: Callable[[], bool]) -> None:
        """Process requests until the strategy may continue and propose a subnet, or must end."""
        while True:
            what, subject = self._requests.get()
            if what == "end":
                raise _Ended
            if what == "finish":
                return
            if what == "observe":
                self._engine.finish(*subject)
                self._answers.put((True, None))
            elif what == "reject":
                self._engine.reject(subject)
                self._answers.put((True, None))
            elif may_go_on():
                return
            else:
                self._answers.put((True, None))
