"""Write metrics of a run into its directories while it trains."""

from __future__ import annotations

import io
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Self

from naspipe.config.definition import Definition
from naspipe.config.errors import ConfigError
from naspipe.config.execution import RecordSettings
from naspipe.config.recipe import learning_rate
from naspipe.config.steps import Steps
from naspipe.jobs.workload import Workload
from naspipe.store.files import write_whole, writing
from naspipe.store.losses import MetricsFile
from naspipe.store.run_directory import PULSE_SECONDS, RunDirectory, write_heartbeat
from naspipe.wire.endpoints import check_ports
from naspipe.wire.ports import LaunchObserver

Values = Mapping[str, float | str | None]

METRICS = "metrics/"
"""Prefix of the names of user-defined metrics."""


def check_tensorboard() -> None:
    """Reject ``--tensorboard`` if the package is missing."""
    try:
        _modules()
    except ImportError as error:
        raise ConfigError(
            f"--tensorboard: expected the package tensorboard ({error}); install it with "
            f"pip install 'naspipe[tensorboard]'"
        ) from error


def _modules() -> tuple[Any, Any]:
    return (
        import_module("tensorboard.compat.proto.event_pb2"),
        import_module("tensorboard.summary.writer.record_writer"),
    )


class TensorBoardFile:
    """The event file of one attempt in ``directory``, which begins with the step ``first``.

    TensorBoard drops what earlier attempts wrote about that step and later ones. Each step is
    written immediately on the caller's thread, so that the caller gets the error.

    Raises:
        StorageError: if the file cannot be written.
    """

    def __init__(self, directory: Path, generation: int, first: int) -> None:
        self._events, self._records = _modules()
        self._path = directory / f"events.out.tfevents.{generation:06}.naspipe"
        with writing(self._path):
            directory.mkdir(exist_ok=True)
            self._file = self._path.open("wb", buffering=0)
        self._append(self._event(0, file_version="brain.Event:2"))
        start = self._events.SessionLog(status=self._events.SessionLog.START)
        self._append(self._event(first, session_log=start))

    def write(self, step: int, values: Values) -> None:
        """Append the scalars of one step; unknown values are left out.

        The losses of a step with several passes are ``loss/pass-0``, ``loss/pass-1``, ..., those of
        its probes ``loss/probe-0``, ...
        """
        event = self._event(step)
        for name, value in _tagged(values):
            event.summary.value.add(tag=name, simple_value=_single(value))
        self._append(event)

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._file.close()

    def _event(self, step: int, **fields: Any) -> Any:
        return self._events.Event(wall_time=time.time(), step=step, **fields)

    def _append(self, event: Any) -> None:
        record = io.BytesIO()
        self._records.RecordWriter(record).write(event.SerializeToString())
        data = record.getvalue()
        with writing(self._path, len(data)):
            write_whole(self._file, data)


def _tagged(values: Values) -> Iterator[tuple[str, float]]:
    """Yield names and numbers; for probes and later passes of a step, only losses and metrics."""
    kind = "probe" if "probe" in values else "pass"
    number = values.get(kind)
    for name, value in values.items():
        if value is None or isinstance(value, str) or name == "time":  # each event has its own time
            continue
        is_of_pass = name == "loss" or name.startswith(METRICS)
        is_of_step = kind == "pass" and not number and name != kind
        if number is None or (is_of_step and not is_of_pass):
            yield name, value
        elif is_of_pass:
            yield f"{name}/{kind}-{number:g}", value


def _single(value: float) -> float:
    """Return a value that fits single precision: infinity instead of anything larger."""
    return math.copysign(math.inf, value) if abs(value) > 3.4e38 else value


_LOOK_SECONDS = 1.0
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class ResidentMemory:
    """The memory of this process and its descendants on this host, read at most once a second.

    Pages that several processes share are counted for each of them.
    """

    def __init__(self) -> None:
        self._bytes, self._looked = 0, -_LOOK_SECONDS

    def bytes(self) -> int | None:
        """Return the number of bytes, or None if the system does not report it."""
        now = time.monotonic()
        if now - self._looked >= _LOOK_SECONDS:
            self._looked = now
            self._bytes = sum(map(_resident, _family(os.getpid())))
        return self._bytes or None


def _family(pid: int) -> Iterator[int]:
    yield pid
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from _family(int(child))


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return 0


class Pulse:
    """Writes a heartbeat to each run directory, at once and every 2 s; a context manager.

    ``vitals`` returns the known values of a stream by its number; it is called on another thread.
    """

    def __init__(
        self, directories: Sequence[Path], vitals: Callable[[int], Mapping[str, Any]]
    ) -> None:
        self._directories = tuple(directories)
        self._vitals = vitals
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="naspipe-pulse", daemon=True)

    def __enter__(self) -> Self:
        self._beat()
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._is_over.set()
        self._thread.join()
        self._beat()

    def _run(self) -> None:
        while not self._is_over.wait(PULSE_SECONDS):
            self._beat()

    def _beat(self) -> None:
        for stream, directory in enumerate(self._directories):
            write_heartbeat(directory, self._vitals(stream))


class Recording:
    """A :class:`LaunchObserver` that writes metrics and forwards all calls to another observer.

    While it is entered, each run directory has a heartbeat. The steps of each stream are written in
    sequence order: a step waits until all earlier ones have arrived, and steps still waiting at the
    end of an attempt are dropped. If a step has several passes, each is written with its number.

    ``bubble_ratio`` (1 - busy time / time of all stages) and ``hit_rate`` are those of the whole
    pipeline so far in this attempt, including warm-up; ``steps_per_second`` counts the steps of
    this attempt. ``time`` is in seconds since 1970, ``resident_bytes`` is the memory of the
    processes on this ``host``, and ``pending`` is the largest number of subnets in flight on a
    stage.
    """

    def __init__(
        self,
        directories: Sequence[RunDirectory],
        definitions: Sequence[Definition],
        observer: LaunchObserver,
        tensorboard: bool,
    ) -> None:
        self._directories = tuple(directories)
        self._definitions = tuple(definitions)
        self._observer = observer
        self._tensorboard = tensorboard
        self._open = ExitStack()
        self._files: list[list[MetricsFile | TensorBoardFile]] = []
        self._next: list[int] = []
        self._waiting: dict[tuple[int, int], Values] = {}
        self._metrics: dict[tuple[int, int], Values] = {}
        self._use: dict[int, tuple[int, int]] = {}
        self._hits: dict[int, tuple[int, int]] = {}
        self._pending: dict[int, int] = {}
        self._firsts: list[int] = [0] * len(self._directories)
        self._loss: dict[int, float | str | None] = {}
        self._step_time: dict[int, float] = {}
        self._memory = ResidentMemory()
        self._pulse = Pulse([directory.path for directory in directories], self.vitals)
        self._host = os.uname().nodename
        self._start = time.monotonic()
        self._done = 0

    def __enter__(self) -> Self:
        self._pulse.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._pulse.__exit__(*exception)
        self._open.close()

    def on_begin(self, generation: int, firsts: Sequence[int]) -> None:
        self._open.close()
        self._files = []
        for stream, (directory, sequence_id) in enumerate(
            zip(self._directories, firsts, strict=True)
        ):
            first = self._steps(stream).step(sequence_id)
            files: list[MetricsFile | TensorBoardFile] = [MetricsFile(directory.metrics, first)]
            self._open.callback(files[-1].close)
            if self._tensorboard:
                files.append(TensorBoardFile(directory.tensorboard, generation, first))
                self._open.callback(files[-1].close)
            self._files.append(files)
        self._next = list(firsts)
        self._waiting, self._use, self._hits, self._done = {}, {}, {}, 0
        self._metrics, self._pending, self._loss = {}, {}, {}
        self._firsts = list(firsts)
        self._start = time.monotonic()
        self._observer.on_begin(generation, firsts)

    def on_loss(self, stream: int, sequence_id: int, loss: float) -> None:
        self._done += 1
        self._step_time[stream] = time.time()
        self._waiting[stream, sequence_id] = self._values(stream, sequence_id, loss)
        while values := self._waiting.pop((stream, self._next[stream]), None):
            self._write(stream, self._next[stream], values)
            if "probe" not in values:
                self._loss[stream] = values["loss"]
            self._next[stream] += 1
        self._observer.on_loss(stream, sequence_id, loss)

    def on_metrics(self, stream: int, sequence_id: int, metrics: Mapping[str, float]) -> None:
        named = {f"{METRICS}{name}": value for name, value in metrics.items()}
        self._metrics[stream, sequence_id] = named
        self._observer.on_metrics(stream, sequence_id, metrics)

    def on_busy(self, stage: int, busy_ns: int, elapsed_ns: int) -> None:
        self._use[stage] = busy_ns, elapsed_ns
        self._observer.on_busy(stage, busy_ns, elapsed_ns)

    def on_hits(self, stage: int, hits: int, reads: int) -> None:
        self._hits[stage] = hits, reads
        self._observer.on_hits(stage, hits, reads)

    def on_pending(self, stage: int, subnets: int) -> None:
        """Record the number of subnets in flight; not forwarded to the other observer."""
        self._pending[stage] = subnets

    def vitals(self, stream: int) -> dict[str, Any]:
        """Return the values for a stream's heartbeat; also called on another thread."""
        steps, definition = self._steps(stream), self._definitions[stream]
        done = self._next[stream] if self._next else 0
        seconds = time.monotonic() - self._start
        return {
            "step": done // steps.passes,
            "steps": definition.steps,
            "steps_per_second": (done - self._firsts[stream]) / steps.passes / seconds,
            "pending": max(list(self._pending.values()), default=None),
            "resident_bytes": self._memory.bytes(),
            "last_step_time": self._step_time.get(stream),
            "loss": self._loss.get(stream),
            "bubble_ratio": None if (busy := _share(self._use)) is None else 1.0 - busy,
            "hit_rate": _share(self._hits),
        }

    def on_validation(self, stream: int, sequence_id: int, scores: Mapping[str, float]) -> None:
        named = {f"validation/{name}": score for name, score in scores.items()}
        self._write(stream, sequence_id, named)
        self._observer.on_validation(stream, sequence_id, scores)

    def on_note(self, text: str) -> None:
        self._observer.on_note(text)

    def _values(self, stream: int, sequence_id: int, loss: float) -> Values:
        definition, steps = self._definitions[stream], self._steps(stream)
        step = steps.step(sequence_id)
        busy = _share(self._use)
        seconds = time.monotonic() - self._start
        return {
            **steps.place(sequence_id),
            "loss": loss,
            **self._metrics.pop((stream, sequence_id), {}),
            "learning_rate": learning_rate(definition.recipe, step, definition.steps),
            "bubble_ratio": None if busy is None else 1.0 - busy,
            "hit_rate": _share(self._hits),
            "steps_per_second": self._done / steps.passes / seconds if seconds > 0 else None,
            "seconds": seconds,
            "time": time.time(),
            "host": self._host,
            "resident_bytes": self._memory.bytes(),
            "pending": max(self._pending.values(), default=None),
        }

    def _steps(self, stream: int) -> Steps:
        return self._definitions[stream].recipe.steps

    def _write(self, stream: int, sequence_id: int, values: Values) -> None:
        for file in self._files[stream]:
            file.write(self._steps(stream).step(sequence_id), values)


def _share(pairs: Mapping[int, tuple[int, int]]) -> float | None:
    """Return the sum of the first numbers over the sum of the second ones; None if that is 0."""
    found = list(pairs.values())
    whole = sum(pair[1] for pair in found)
    return sum(pair[0] for pair in found) / whole if whole else None


_GAUGES = {
    "step": "Optimizer steps that are done.",
    "steps": "Optimizer steps of the whole run.",
    "steps_per_second": "Of this life of the run.",
    "last_step_time": "When the last pass was told, in seconds since 1970.",
    "loss": "Of the last pass that was told.",
    "pending": "Subnets under way, the most on a stage.",
    "resident_bytes": "Memory of the launcher's processes on its host.",
    "bubble_ratio": "1 - busy time / time of all stages, in this life.",
    "hit_rate": "Accesses whose layer was there, of all.",
}
"""Help texts of the gauges, by the names of a run's vitals."""


def check_metrics_server(records: RecordSettings) -> None:
    """Reject ``metrics_port`` without its package, on a foreign address, or on a used port."""
    if not records.metrics_port:
        return
    try:
        import_module("prometheus_client")
    except ImportError as error:
        raise ConfigError(
            f"metrics_port={records.metrics_port}: expected the package prometheus_client "
            f"({error}); install it with pip install 'naspipe[prometheus]'"
        ) from None
    keys = ("metrics_port", "metrics_address")
    check_ports(records.metrics_address, [records.metrics_port], keys)


@contextmanager
def recorded(
    directories: Sequence[RunDirectory],
    workloads: Sequence[Workload],
    observer: LaunchObserver,
    records: RecordSettings,
) -> Iterator[Recording]:
    """Record a run while it trains, report to an observer, and serve metrics to Prometheus."""
    definitions = [workload.definition for workload in workloads]
    names = [str(directory.path) for directory in directories]
    with (
        Recording(directories, definitions, observer, records.tensorboard) as recording,
        MetricsServer(records, names, recording.vitals),
    ):
        yield recording


class MetricsServer:
    """Serves ``http://ADDRESS:PORT/metrics`` on its own threads; a context manager.

    Without a port it does nothing. ``names`` are the values of the label ``run`` of the streams.
    """

    def __init__(
        self,
        records: RecordSettings,
        names: Sequence[str],
        vitals: Callable[[int], Mapping[str, Any]],
    ) -> None:
        self._records = records
        self._names = tuple(names)
        self._vitals = vitals
        self._server: Any = None

    def __enter__(self) -> Self:
        if self._records.metrics_port:
            client = import_module("prometheus_client")
            registry = client.CollectorRegistry()
            registry.register(self)
            port, address = self._records.metrics_port, self._records.metrics_address
            self._server, _ = client.start_http_server(port, addr=address, registry=registry)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def collect(self) -> Iterator[Any]:
        """Yield a gauge for each vital; called at every scrape."""
        gauge = import_module("prometheus_client.core").GaugeMetricFamily
        found = [self._vitals(stream) for stream in range(len(self._names))]
        for name, text in _GAUGES.items():
            family = gauge(f"naspipe_{name}", text, labels=["run"])
            for run, vitals in zip(self._names, found, strict=True):
                if vitals.get(name) is not None:
                    family.add_metric([run], float(vitals[name]))
            yield family
