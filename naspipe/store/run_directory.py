"""The run directory: the paths of all files that a run leaves, and the state of the run.

This module also owns the small files of a run: the heartbeat, the costs of layers, and a file that
reserves space so that a run can write its last manifest even if the disk is full.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import struct
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeGuard

from naspipe.config.errors import ConfigError
from naspipe.config.ids import StageId
from naspipe.config.text import parse_json
from naspipe.store.checkpoints import CheckpointFolder
from naspipe.store.files import SPACE, write_json, writing
from naspipe.store.losses import Loss, read_losses

MANIFEST_FORMAT = 1


def stream_directories(path: Path, streams: int) -> list[RunDirectory]:
    """Return the run directories of streams that share a pipeline; one stream uses ``path``."""
    if streams == 1:
        return [RunDirectory(path)]
    return [RunDirectory(path / f"stream-{number}") for number in range(streams)]


class RunDirectory:
    """Paths, manifest and losses of one run; creating the object touches no file."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.manifest = self.path / "manifest.json"
        """The definition of the run, its environment and its measurements."""
        self.losses = self.path / "losses.jsonl"
        """One line per pass, in sequence order."""
        self.stream = self.path / "stream.jsonl"
        """The subnets, one list of choices per line."""
        self.made_of = self.path / "made_of.json"
        """Descriptions of layers, and values captured by functions; absent in simulated runs."""
        self.costs = self.path / "costs.json"
        """Expected costs of layers; see :func:`write_costs`. Not every run has this file."""
        self.metrics = self.path / "metrics.jsonl"
        """What was measured during the run, one line per pass."""
        self.validation = self.path / "validation.jsonl"
        """Scores on held-out data; see ``naspipe.store.validations``."""
        self.tensorboard = self.path / "tensorboard"
        self.checkpoints = CheckpointFolder(self.path / "checkpoints")

    def losses_of(self, section: int) -> Path:
        """The losses from which the backward of a section starts; section 0 is the chain's end."""
        return self.path / f"losses-{section}.jsonl" if section else self.losses

    def access_log(self, stage: StageId | int, generation: int = 0) -> Path:
        """Return the access log of one stage.

        Every attempt has its own files, so that a process of an earlier attempt that is still
        running can never write to the files of a later one.
        """
        return self.path / "access" / _stage_file(stage, generation)

    def events_log(self, stage: StageId | int, generation: int = 0) -> Path:
        """Return the recorded events of one stage's controller."""
        return self.path / "events" / _stage_file(stage, generation)

    def checkpoint(self, name: str = "final") -> Path:
        return self.checkpoints.path / name

    @property
    def is_used(self) -> bool:
        """Return True if the directory exists and is not empty."""
        return self.path.is_dir() and any(self.path.iterdir())

    def check_new(self) -> None:
        """Check, without writing, that a run can be created here; ConfigError if not."""
        if self.path.exists() and not self.path.is_dir():
            raise ConfigError(
                f"run directory {self.path}: expected a directory, found a file; choose another "
                f"with --run-dir"
            )
        if self.is_used:
            raise ConfigError(
                f"run directory {self.path} exists and is not empty; remove it, choose another "
                f"with --run-dir, or go on with it: --resume, or --resume-if-exists"
            )
        above = next(path for path in self.path.absolute().parents if path.exists())
        if not above.is_dir():
            self._refuse(os.strerror(errno.ENOTDIR))

    def create(self) -> None:
        """Create the directory and its subdirectories; ConfigError if it is already in use."""
        self.check_new()
        try:
            for folder in ("access", "events", "checkpoints"):
                (self.path / folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            self._refuse(error.strerror, error)

    def _refuse(self, why: str | None, error: OSError | None = None) -> NoReturn:
        raise ConfigError(
            f"run directory {self.path} cannot be made: {why}; choose another with --run-dir"
        ) from error

    def write_manifest(self, manifest: Mapping[str, Any]) -> None:
        """Replace the manifest atomically."""
        write_json(self.manifest, manifest)

    def read_manifest(self) -> dict[str, Any]:
        """Read the manifest; ConfigError if this is not a run directory of this format."""
        try:
            manifest = parse_json(self.manifest.read_bytes())
        except OSError as error:
            raise ConfigError(
                f"{self.path} is not a run directory: expected {self.manifest}, "
                f"found {error.strerror}"
            ) from error
        except ValueError as error:
            raise ConfigError(
                f"{self.path} is not a run directory: {self.manifest} is damaged: {error}"
            ) from error
        found = manifest.get("format") if isinstance(manifest, dict) else None
        if not isinstance(manifest, dict) or found != MANIFEST_FORMAT:
            raise ConfigError(
                f"{self.path} is not a run directory of this version: expected format "
                f"{MANIFEST_FORMAT} in {self.manifest}, found {found}"
            )
        return manifest

    def nonfinite_passes(self) -> list[int]:
        """Passes whose loss is infinite or NaN; depending on the recipe they are skipped."""
        return [int(loss.sequence_id) for loss in self.read_losses() if not isfinite(loss.value)]

    def read_losses(self) -> list[Loss]:
        """Return every recorded loss; see :func:`naspipe.store.losses.read_losses`."""
        return read_losses(self.losses)


def _stage_file(stage: StageId | int, generation: int) -> str:
    return f"stage-{stage}{f'.gen-{generation}' if generation else ''}.msgpack"


HEARTBEAT = "heartbeat.json"
PULSE_SECONDS = 2.0
"""Interval between heartbeats."""


def write_heartbeat(directory: Path, values: Mapping[str, Any]) -> None:
    """Replace the heartbeat file; if the disk is full, the previous one is kept."""
    temporary = directory / f".{HEARTBEAT}.{os.getpid()}.tmp"
    plain = {
        name: None if isinstance(value, float) and not isfinite(value) else value
        for name, value in values.items()
    }
    with suppress(OSError):
        try:
            whose = {"time": time.time(), "host": os.uname().nodename, "pid": os.getpid()}
            temporary.write_text(json.dumps({**whose, **plain}) + "\n")
            temporary.replace(directory / HEARTBEAT)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise


def read_heartbeat(directory: Path) -> dict[str, Any]:
    """Return the last heartbeat; empty if there is none."""
    try:
        found = parse_json((directory / HEARTBEAT).read_bytes())
    except (OSError, ValueError):
        return {}
    is_one = (
        isinstance(found, dict)
        and is_time(found.get("time"))
        and isinstance(found.get("host"), str)
        and type(found.get("pid")) is int
    )
    return found if is_one else {}


def is_time(value: object) -> TypeGuard[float]:
    """Return True if the value can be a time in seconds since 1970."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e11


LOCK = ".lock"
"""The lock file in a run directory, which the run's launcher locks."""
DIED = "died"
"""Status of a run that ended without writing one, because it was killed or its host went down."""

_UNDER_WAY = ("planning", "running")
_FRESH_SECONDS = 20.0
"""Maximum age of a heartbeat that shows that a run is alive."""
_STALLED_SECONDS = 60.0
_STALLED_STEPS = 5.0
"""A run is stalled if it makes no step for ``_STALLED_SECONDS`` and for this many step times."""


class RunState(NamedTuple):
    """The state of a run as seen by other processes.

    ``status`` is that of the manifest, or ``died``; ``said`` describes a run that is not complete.
    ``beat`` is the last heartbeat, or empty; ``seen`` is the time of the last sign of life, in
    seconds since 1970.
    """

    status: str
    said: str
    beat: Mapping[str, Any]
    seen: float | None

    @property
    def last_step(self) -> float | None:
        """Time of the last step, in seconds since 1970; None if unknown."""
        found = self.beat.get("last_step_time")
        return found if is_time(found) else None

    def is_stalled(self, now: float) -> bool:
        """Return True if the run has made no step for far longer than its steps take."""
        if self.status != "running" or self.last_step is None:
            return False
        speed = self.beat.get("steps_per_second")
        usual = 1.0 / speed if isinstance(speed, int | float) and speed > 0 else 0.0
        return now - self.last_step > max(_STALLED_SECONDS, _STALLED_STEPS * usual)


def run_state(directory: RunDirectory, manifest: Mapping[str, Any]) -> RunState:
    """Determine the state of a run from its manifest, its heartbeat and its lock."""
    written = str(manifest.get("status"))
    beat = read_heartbeat(directory.path)
    seen: float | None = None
    if beat:
        seen = float(beat["time"])
    else:
        with suppress(OSError):
            seen = directory.manifest.stat().st_mtime
    silence = max(0.0, time.time() - (seen or 0.0))
    is_here = bool(beat) and beat["host"] == os.uname().nodename
    held = False
    if written in _UNDER_WAY:
        # Opening and closing the lock file would release a lock that this process itself holds.
        held = (is_here and beat["pid"] == os.getpid()) or is_held(directory.path / LOCK)
    status = decide(written, held, is_here or not beat, silence)

    where = f" on {beat['host']:.80}" if beat else ""
    said = f"its manifest says {written!r:.80}"
    if status == DIED:
        said = (
            f"it ended without a word: its manifest says {written!r}, but no process holds it; "
            f"last sign of life {ago(silence)}{where}"
        )
    elif status in _UNDER_WAY and beat:
        said += (
            f": process {beat['pid']}{where} is at it, step {beat.get('step')} of "
            f"{beat.get('steps')}, last sign of life {ago(silence)}"
        )
    return RunState(status, said, beat, seen)


def decide(written: str, is_held: bool, is_here: bool, silence: float) -> str:
    """Return the status of a run.

    Args:
        written: the status in its manifest.
        is_held: True if this host can see that a process holds its lock.
        is_here: True if that process would run on this host.
        silence: seconds since the last sign of life.
    """
    if written not in _UNDER_WAY or is_held:
        return written
    return written if not is_here and silence < _FRESH_SECONDS else DIED


def is_held(lock: Path) -> bool:
    """Return True if another process holds a lock, without acquiring it."""
    try:
        with lock.open("rb") as file:
            if sys.platform != "linux":
                fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return False
            asked = struct.pack("hhqqi4x", fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
            answer = fcntl.fcntl(file, fcntl.F_GETLK, asked)
            return bool(struct.unpack("hhqqi4x", answer)[0] != fcntl.F_UNLCK)
    except BlockingIOError:
        return True
    except OSError:
        return False


def ago(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


Row = Sequence[int]
"""Block, option, and its costs in nanoseconds and bytes."""


def write_costs(path: Path, columns: Sequence[str], rows: Iterable[Row]) -> None:
    """Write the rows with the names of their ``columns``."""
    write_json(path, {"columns": " ".join(columns), "rows": [" ".join(map(str, r)) for r in rows]})


def read_costs(path: Path, columns: Sequence[str]) -> list[tuple[int, ...]] | None:
    """Return the rows of a run; None if it was planned without costs.

    Raises:
        ConfigError: if the file is damaged, or has other columns.
    """
    if not path.exists():
        return None
    try:
        values = parse_json(path.read_text("utf-8"))
        rows = [tuple(map(int, row.split(" "))) for row in values["rows"]]
        is_good = values["columns"] == " ".join(columns) and all(
            len(row) == len(columns) and all(0 <= value < 1 << 62 for value in row) for row in rows
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        is_good, rows = False, []
    if not is_good:
        raise ConfigError(
            f"{path}: expected rows of {', '.join(columns)}, found something else; without the "
            f"file they are taken from the log"
        )
    return rows


RESERVED = ".reserved"
"""A file in the directory of a running run that reserves space for its last manifest."""

_MORE_BYTES = 8192
"""Space for an error message and measurements, in addition to twice the manifest."""


def reserve(directory: RunDirectory, manifest: Mapping[str, Any]) -> None:
    """Reserve space for the last manifest of an attempt; StorageError if the disk is full."""
    path = directory.path / RESERVED
    size = 2 * len(json.dumps(manifest, default=str)) + _MORE_BYTES
    with writing(path, size):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
        try:
            os.posix_fallocate(descriptor, 0, size)
        except OSError as error:
            if error.errno in SPACE:
                path.unlink()
                raise
            if error.errno not in (errno.EFBIG, errno.EOPNOTSUPP, errno.EINVAL):
                raise
        finally:
            os.close(descriptor)


def write_last(directory: RunDirectory, manifest: Mapping[str, Any]) -> None:
    """Write the manifest of an attempt that ends now, freeing the reserved space if necessary.

    Raises:
        OSError: if it still cannot be written.
    """
    if isinstance(manifest.get("provenance"), Mapping):
        manifest = {**manifest, "provenance": {**manifest["provenance"], "ended": time.time()}}
    kept = directory.path / RESERVED
    try:
        directory.write_manifest(manifest)
    except OSError as error:
        if error.errno not in SPACE:
            raise
        kept.unlink(missing_ok=True)
        directory.write_manifest(manifest)
    kept.unlink(missing_ok=True)
