"""The process that judges subnets with the weights of a run's checkpoints, beside the training."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from queue import Queue
from typing import Any

import msgpack

from naspipe.config.definition import Execution
from naspipe.config.errors import LogError, StageFailedError
from naspipe.config.ids import FIRST_STREAM
from naspipe.config.partition import Partition
from naspipe.core.events import Planned
from naspipe.runtime.evaluating.evaluation import evaluation_of
from naspipe.runtime.evaluating.evaluation_stage import EvaluationJob
from naspipe.runtime.evaluating.score_sheet import ScoreSheet
from naspipe.runtime.forking.fork import leave_signals_to_launcher
from naspipe.runtime.forking.own_thread import in_own_thread
from naspipe.runtime.jobs.evaluation_recipe import EvaluationRecipe
from naspipe.runtime.jobs.job import ValidationPlan
from naspipe.runtime.processes.evaluation_launcher import Watch, evaluate
from naspipe.runtime.wire.reports import HEARTBEAT_SECONDS, WAITING, AtIt
from naspipe.runtime.worker.stage_main import failure_report
from naspipe.search.scores import Scores
from naspipe.trace.snapshots.snapshot import read_checkpoint

_LEAST_PRIORITY = 19


def validation_main(
    validations: Sequence[ValidationPlan | None],
    execution: Execution,
    connection: Connection,
    *,
    gives_way: bool,
) -> None:
    """Answer questions until there are no more: ``[stream, path of a checkpoint, its cut]``.

    With ``gives_way`` it takes the processor's time that nobody else wants. Without, somebody waits
    for it, and is sent heartbeats as stages send them: maps with ``doing`` and ``age``. An answer
    is a map with ``stream``, ``cut`` and one of ``scores`` (a map for each subnet), ``note`` (why
    there are none) and ``failure`` (as stages report theirs).
    """
    leave_signals_to_launcher()  # without it there is nothing to do any more
    if gives_way:
        os.setpriority(os.PRIO_PROCESS, 0, _LEAST_PRIORITY)
    questions: Queue[Any] = Queue()
    threading.Thread(target=_read, args=(connection, questions), daemon=True).start()
    voice = _Voice(connection)
    if not gives_way:
        threading.Thread(target=voice.beat, daemon=True).start()
    while (question := questions.get()) is not None:
        stream, path, cut = question
        validation = validations[stream]
        answer = (
            _answer(validation, Path(path), cut, execution, voice.watch)
            if validation
            else {"note": "not asked for"}
        )
        voice.watch(lambda: WAITING)
        voice.say({"stream": stream, "cut": cut, **answer})


class _Voice:
    """What the process says to the launcher, from two threads."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._current: Callable[[], str] = lambda: WAITING

    def watch(self, current: Callable[[], str]) -> None:
        """This says from now on what the process is at."""
        self._current = current

    def say(self, body: Mapping[str, Any]) -> None:
        """Send one message; the process ends when the launcher has ended."""
        with self._lock:
            self._connection.send_bytes(msgpack.packb(body))

    def beat(self) -> None:
        """Give signs of life, without an end."""
        at_it, never = AtIt(), threading.Event()
        while not never.wait(HEARTBEAT_SECONDS):
            self.say(at_it.look(self._current()))


def _read(connection: Connection, questions: Queue[Any]) -> None:
    """Take questions in; the process ends at once when the launcher has ended."""
    while True:
        try:
            question = msgpack.unpackb(connection.recv_bytes())
        except (EOFError, OSError):
            os._exit(1)
        questions.put(question)
        if question is None:
            return


def _answer(
    validation: ValidationPlan, path: Path, cut: int, execution: Execution, watch: Watch
) -> dict[str, Any]:
    watch(lambda: "reading the checkpoint")
    try:
        threads = validation.evaluation.workload.definition.recipe.threads
        found = in_own_thread(threads, lambda: judge(validation, path, execution, watch))
        return {"scores": found}
    except LogError as error:
        return {"note": str(error)}
    except StageFailedError as error:
        task = f"the validation at subnet {cut}, {error.task}"
        said = {"traceback": error.traceback_text, "host": error.host}
        return {"failure": {"kind": "", "task": task, **said}}
    except Exception as error:
        return {"failure": failure_report(f"the validation at subnet {cut}", error)}


def judge(
    validation: ValidationPlan, path: Path, execution: Execution, watch: Watch
) -> list[dict[str, float]]:
    """The scores of each subnet with the weights of a checkpoint.

    Args:
        validation: what is judged, and on what.
        path: of the checkpoint.
        execution: the run's; how it computes, and how long anything may take.
        watch: given what says what is being done.

    Raises:
        LogError: when the checkpoint is damaged.
        ConfigError, StageFailedError: see :func:`evaluate`.
    """
    evaluation = validation.evaluation
    source = _Fixed(evaluation, validation.choices)
    count = source.count
    sheet = ScoreSheet()
    job = EvaluationJob(
        evaluation=evaluation_of(evaluation, read_checkpoint(path)),
        source=source,
        budget=count,
        execution=Execution(device=execution.hardware.device, window=count, watch=execution.watch),
    )
    watch(lambda: WAITING)  # for a stage that is watched here, unless it is this process
    evaluate(job, sheet, lambda scores: 0.0, watch)
    target = "target" if evaluation.probe else evaluation.workload.target_field
    is_text = evaluation.held_out(evaluation.workload.definition.seed, 0)[target].dim() > 1
    return [_named(sheet.scores[number], is_text) for number in range(count)]


def _named(scores: Scores, is_text: bool) -> dict[str, float]:
    """What applies, by name."""
    found = {"loss": scores.loss}
    if is_text:
        found["perplexity"] = _exp(scores.loss)
    if not math.isnan(scores.top1):
        found |= {"top1": scores.top1, "top5": scores.top5}
    return found


def _exp(loss: float) -> float:
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


class _Fixed:
    """A source of subnets that are known: see :class:`naspipe.runtime.jobs.ports.SubnetSource`."""

    def __init__(self, evaluation: EvaluationRecipe, choices: Sequence[Sequence[int]]) -> None:
        space = evaluation.workload.space
        whole = Partition((0, len(space)))
        self.subnets = [
            space.subnet(FIRST_STREAM, number, space.chain(each))
            for number, each in enumerate(choices)
        ]
        self.count = len(self.subnets)
        self._planned = [Planned(each, whole) for each in self.subnets]

    def begin(self, done: int, scores: Iterable[float]) -> Sequence[Planned]:
        """All of them."""
        return self._planned

    def take(self, sequence_id: int, score: float) -> Sequence[Planned]:
        """No more."""
        return ()

    def close(self) -> None:
        """Nothing to end."""


def means(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Of each score, over all subnets, summed in their order."""
    return {name: sum(row[name] for row in rows) / len(rows) for name in rows[0]}
