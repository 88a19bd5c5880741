"""Validation during training: a separate process evaluates published checkpoints.

Training only writes checkpoints. :class:`ValidationLauncher` sends the path of each checkpoint that
is due to the process (:func:`validation_main`), and records the returned scores.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from queue import Queue
from typing import Any, NoReturn

import msgpack

from naspipe.config.errors import LogError, StageFailedError
from naspipe.config.execution import Execution
from naspipe.config.ids import FIRST_STREAM
from naspipe.config.partition import Partition
from naspipe.engine.events import Planned
from naspipe.evaluation.evaluation import ScoreSheet, evaluation_of
from naspipe.evaluation.evaluation_stage import EvaluationJob
from naspipe.jobs.workload import EvaluationRecipe
from naspipe.launch.evaluation import Watch, evaluate
from naspipe.launch.liveness import Liveness
from naspipe.launch.supervisor import raise_failure
from naspipe.machine.forking import (
    FORK,
    end_all,
    in_own_thread,
    leave_signals_to_launcher,
    obituary,
    quiet_fork,
)
from naspipe.store.checkpoints import FINAL, cut_name, read_checkpoint
from naspipe.store.validations import Judged, Validation, ValidationFile
from naspipe.wire.ports import LaunchObserver
from naspipe.wire.reports import HEARTBEAT_SECONDS, WAITING, AtIt
from naspipe.wire.transport import Wakeup
from naspipe.worker.job import TrainingJob, ValidationPlan
from naspipe.worker.stage_main import failure_report

_LEAST_PRIORITY = 19


def validation_main(
    validations: Sequence[ValidationPlan | None],
    execution: Execution,
    launchers_end: Connection,
    connection: Connection,
    gives_way: bool,
) -> None:
    """Answer requests ``[stream, path of a checkpoint, its cut]`` until no more arrive.

    With ``gives_way`` the process has the lowest priority. Otherwise the launcher waits for it, and
    receives heartbeats as from stages: maps with ``doing`` and ``age``. An answer is a map with
    ``stream``, ``cut`` and one of ``scores`` (a map for each subnet), ``note`` (the reason for
    missing scores) and ``failure`` (as reported by stages).
    """
    launchers_end.close()  # so that the end of the launcher is detected
    leave_signals_to_launcher()
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
    """Sends messages from the process to the launcher, from two threads."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._current: Callable[[], str] = lambda: WAITING

    def watch(self, current: Callable[[], str]) -> None:
        """Set the function that returns the current activity of the process."""
        self._current = current

    def say(self, body: Mapping[str, Any]) -> None:
        with self._lock:
            self._connection.send_bytes(msgpack.packb(body))

    def beat(self) -> None:
        at_it, never = AtIt(), threading.Event()
        while not never.wait(HEARTBEAT_SECONDS):
            self.say(at_it.look(self._current()))


def _read(connection: Connection, questions: Queue[Any]) -> None:
    """Read requests, and end the process as soon as the launcher has ended."""
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
        more = {"traceback": error.traceback_text, "host": error.host}
        return {"failure": {"kind": "", "task": task, **more}}
    except Exception as error:
        return {"failure": failure_report(f"the validation at subnet {cut}", error)}


def judge(
    validation: ValidationPlan, path: Path, execution: Execution, watch: Watch
) -> list[dict[str, float]]:
    """Return the scores of each subnet, computed with the weights of a checkpoint.

    The device and the time limits are those of the run.

    Raises:
        LogError: if the checkpoint is damaged.
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
    watch(lambda: WAITING)  # stages in other processes are supervised by evaluate
    evaluate(job, sheet, lambda scores: 0.0, watch)
    target = "target" if evaluation.probe else evaluation.workload.target_field
    is_text = evaluation.held_out(evaluation.workload.definition.seed, 0)[target].dim() > 1
    rows = []
    for number in range(count):
        scores = sheet.scores[number]
        row = {"loss": scores.loss}
        if is_text:
            try:
                row["perplexity"] = math.exp(scores.loss)
            except OverflowError:
                row["perplexity"] = math.inf
        if not math.isnan(scores.top1):
            row |= {"top1": scores.top1, "top5": scores.top5}
        rows.append(row)
    return rows


class _Fixed:
    """A source of known subnets; see :class:`naspipe.jobs.ports.SubnetSource`."""

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
        return self._planned

    def take(self, sequence_id: int, score: float) -> Sequence[Planned]:
        return ()

    def close(self) -> None:
        """Do nothing."""


class ValidationLauncher:
    """Requests the evaluation of checkpoints, and records the scores; a context manager.

    It includes checkpoints that an earlier attempt did not evaluate. If no stream is validated, it
    does nothing.
    """

    def __init__(self, job: TrainingJob, observer: LaunchObserver) -> None:
        self._job = job
        self._observer = observer
        self._every = job.execution.validation.every_steps * job.steps.passes
        self._files: dict[int, ValidationFile] = {}
        self._waiting: dict[int, list[int]] = {}
        """The requested cuts of each stream that is validated, in order."""
        self._process: BaseProcess | None = None
        self._connection: Connection | None = None
        self._liveness: Liveness | None = None

    def __enter__(self) -> ValidationLauncher:
        validations = [stream.validation for stream in self._job.streams]
        if not any(validations):
            return self
        for number, stream in enumerate(self._job.streams):
            if stream.validation:
                self._files[number] = ValidationFile(stream.directory.validation, stream.first)
                self._waiting[number] = []
        self._start(gives_way=True)
        for number, stream in enumerate(self._job.streams):
            for cut in reversed(stream.directory.checkpoints.cuts if stream.validation else []):
                if cut <= stream.first:
                    self.published(number, cut)
        return self

    def __exit__(self, *exception: object) -> None:
        self._end()
        for file in self._files.values():
            file.close()

    def _start(self, *, gives_way: bool) -> None:
        self._connection, theirs = FORK.Pipe()
        validations = [stream.validation for stream in self._job.streams]
        self._process = FORK.Process(
            target=validation_main,
            args=(validations, self._job.execution, self._connection, theirs, gives_way),
            name="naspipe-validator",
        )
        watch = self._job.execution.watch
        self._liveness = Liveness(
            [0], time.monotonic(), watch.silence_seconds, watch.timeout_seconds
        )
        with quiet_fork():
            self._process.start()
        theirs.close()

    def _end(self) -> None:
        if self._process is not None:
            end_all([self._process])
        if self._connection is not None:
            self._connection.close()
        self._process = self._connection = None

    def published(self, stream: int, cut: int) -> None:
        if stream not in self._files or cut % self._every:
            return
        if cut not in self._files[stream].known and cut not in self._waiting[stream]:
            self._ask(stream, cut, cut_name(cut))

    def needed(self, stream: int) -> Collection[int]:
        """Return the cuts of a stream whose checkpoints have not been evaluated yet."""
        return self._waiting.get(stream, ())

    def collect(self) -> None:
        """Record the scores that have arrived.

        Raises:
            ConfigError, StorageError, StageFailedError: if a validation failed.
        """
        while any(self._waiting.values()) and self._connection and self._connection.poll():
            self._take_next(self._connection)

    def finish(self, is_stopped: Callable[[], bool], wakeup: Wakeup) -> bool:
        """Request the final checkpoints, and wait for all scores. Return False if asked to stop.

        Raises:
            ConfigError, StorageError, StageFailedError: if a validation failed.
        """
        self.collect()
        waiting, self._waiting = self._waiting, {number: [] for number in self._files}
        if self._files:  # use a new process, as this one cannot regain normal priority
            self._end()
            self._start(gives_way=False)
        for number, file in self._files.items():
            for cut in waiting[number]:
                self._ask(number, cut, cut_name(cut))
            cut = self._job.streams[number].num_passes
            if cut not in file.known and cut not in self._waiting[number]:
                self._ask(number, cut, FINAL)
        left = sum(map(len, self._waiting.values()))
        if left > len(self._files):
            self._observer.on_note(f"trained; {left} checkpoints are left to be evaluated")
        look_seconds = self._liveness.look_seconds if self._liveness else HEARTBEAT_SECONDS
        while self._connection and any(self._waiting.values()):
            if is_stopped():
                return False
            wait([self._connection, wakeup.fileno()], look_seconds)
            wakeup.clear()
            self.collect()
            problem = self._liveness.problem(time.monotonic()) if self._liveness else None
            if problem is not None and any(self._waiting.values()):
                raise StageFailedError(0, f"{self._oldest()}, {problem.task}", problem.why)
        if self._connection and self._process:
            self._connection.send_bytes(msgpack.packb(None))
            self._process.join(self._job.execution.watch.silence_seconds)
        return True

    def _ask(self, stream: int, cut: int, name: str) -> None:
        path: Path = self._job.streams[stream].directory.checkpoint(name)
        self._waiting[stream].append(cut)
        if self._connection:
            try:
                self._connection.send_bytes(msgpack.packb([stream, str(path), cut]))
            except OSError:
                self._is_dead()

    def _take_next(self, connection: Connection) -> None:
        try:
            answer: dict[str, Any] = msgpack.unpackb(connection.recv_bytes())
        except (EOFError, OSError):
            self._is_dead()
        if "doing" in answer:
            if self._liveness:
                self._liveness.hear(0, time.monotonic(), answer["doing"], answer["age"])
            return
        stream, cut = answer["stream"], answer["cut"]
        self._waiting[stream].remove(cut)
        if failure := answer.get("failure"):
            raise_failure(0, failure)
        if "scores" not in answer:
            self._observer.on_note(f"no validation at subnet {cut}: {answer['note']}")
            return
        rows: list[dict[str, float]] = answer["scores"]
        validation = self._job.streams[stream].validation
        choices = validation.choices if validation else ()
        subnets = tuple(Judged(*pair) for pair in zip(choices, rows, strict=True))
        # The means are computed over all subnets in their order.
        scores = {name: sum(row[name] for row in rows) / len(rows) for name in rows[0]}
        steps = cut // self._job.steps.passes
        self._files[stream].append(Validation(cut, steps, scores, subnets))
        self._observer.on_validation(stream, cut - 1, scores)

    def _is_dead(self) -> NoReturn:
        """Raise the error for a process that ended before answering the oldest request."""
        how = obituary(self._process) if self._process else "its process ended"
        raise StageFailedError(0, self._oldest(), how)

    def _oldest(self) -> str:
        cut = min(cut for cuts in self._waiting.values() for cut in cuts)
        return f"the validation at subnet {cut}"
