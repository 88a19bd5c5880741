"""TensorBoard's event files, through the extra ``tensorboard``."""

from __future__ import annotations

import io
import math
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from naspipe.config.errors import ConfigError
from naspipe.frontend.training.ports import METRICS, Values
from naspipe.trace.storage.writing import write_whole, writing


def check_tensorboard() -> None:
    """TensorBoard must be there before a run that asks for it begins.

    Raises:
        ConfigError: naming the extra.
    """
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
    """One life's event file in ``directory``; ``first`` is the step that it begins with.

    TensorBoard then drops what earlier lives said of that step and later ones. Files are written
    on the caller's thread, each step at once: an error is its caller's.

    Raises:
        StorageError: when the file cannot be written.
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
        """Append the scalars of one step; what is not known is left out.

        The losses of a step with several passes are ``loss/pass-0``, ``loss/pass-1``, ..., those of
        its probes ``loss/probe-0``, ...

        Raises:
            StorageError: when they cannot be written.
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
    """Names and numbers; of probes and later passes of a step the losses and metrics alone."""
    kind = "probe" if "probe" in values else "pass"
    number = values.get(kind)
    for name, value in values.items():
        if value is None or isinstance(value, str) or name == "time":  # each event has its own
            continue
        is_of_pass = name == "loss" or name.startswith(METRICS)
        is_of_step = kind == "pass" and not number and name != kind
        if number is None or (is_of_step and not is_of_pass):
            yield name, value
        elif is_of_pass:
            yield f"{name}/{kind}-{number:g}", value


def _single(value: float) -> float:
    """What single precision holds of it."""
    return math.copysign(math.inf, value) if abs(value) > 3.4e38 else value
