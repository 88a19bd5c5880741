"""The run directory: where everything a run leaves behind is found."""

from __future__ import annotations

import errno
import fcntl
import json
import math
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
    """The run directories of streams that share a pipeline; of one alone, the path itself."""
    if streams == 1:
        return [RunDirectory(path)]
    return [RunDirectory(path / f"stream-{number}") for number in range(streams)]


def _suffix(generation: int) -> str:
    return f".gen-{generation}" if generation else ""


class RunDirectory:
    """Paths, manifest and losses of one run; making the object touches no file."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    @property
    def manifest(self) -> Path:
        """What defines the run, what it ran on and what was measured."""
        return self.path / "manifest.json"

    @property
    def losses(self) -> Path:
        """One line per pass, in sequence order."""
        return self.losses_of(0)

    def losses_of(self, section: int) -> Path:
        """Losses that begin the backward of a section of the chain; 0 is the chain's end."""
        return self.path / (f"losses-{section}.jsonl" if section else "losses.jsonl")

    @property
    def stream(self) -> Path:
        """The subnets, one list of choices a line."""
        return self.path / "stream.jsonl"

    @property
    def made_of(self) -> Path:
        """Texts of the layers, and what functions capture; simulated runs have none."""
        return self.path / "made_of.json"

    @property
    def costs(self) -> Path:
        """What layers were taken to cost; see :mod:`.costs_file`. Not every run has it."""
        return self.path / "costs.json"

    @property
    def metrics(self) -> Path:
        """What was known while it went, a line per pass; see :mod:`.metrics_file`."""
        return self.path / "metrics.jsonl"

    @property
    def validation(self) -> Path:
        """How the supernet did on held-out data; see ``naspipe.store.validations``."""
        return self.path / "validation.jsonl"

    @property
    def tensorboard(self) -> Path:
        """TensorBoard's files of the run, where it was asked for them."""
        return self.path / "tensorboard"

    def access_log(self, stage: StageId | int, generation: int = 0) -> Path:
        """The access log of one stage.

        Every generation has files of its own: a process of an earlier one that is still there
        can never write into the files of a later one.
        """
        return self.path / "access" / f"stage-{stage}{_suffix(generation)}.msgpack"

    def events_log(self, stage: StageId | int, generation: int = 0) -> Path:
        """The recorded events of one stage's controller."""
        return self.path / "events" / f"stage-{stage}{_suffix(generation)}.msgpack"

    def checkpoint(self, name: str = "final") -> Path:
        """The directory of one checkpoint."""
        return self.checkpoints.path / name

    @property
    def checkpoints(self) -> CheckpointFolder:
        """All checkpoints of the run."""
        return CheckpointFolder(self.path / "checkpoints")

    @property
    def is_used(self) -> bool:
        """Whether something is there already."""
        return self.path.is_dir() and any(self.path.iterdir())

    def check_new(self) -> None:
        """Refuse a place where something is already, or nothing can be; writes nothing.

        Raises:
            ConfigError: naming the place and what to do.
        """
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
        """Make the directory and its folders.

        Raises:
            ConfigError: when something is there already; nothing is written then.
        """
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
        """Replace the manifest, atomically."""
        write_json(self.manifest, manifest)

    def read_manifest(self) -> dict[str, Any]:
        """The manifest.

        Raises:
            ConfigError: when this is not a run directory, or not one of this format.
        """
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
        """Passes whose loss is infinite or not a number; skipped where the recipe says so."""
        return [int(loss.sequence_id) for loss in self.read_losses() if not isfinite(loss.value)]

    def read_losses(self) -> list[Loss]:
        """Every recorded loss; see :func:`naspipe.store.losses.read_losses`."""
        return read_losses(self.losses)


HEARTBEAT = "heartbeat.json"
"""In a run directory."""
PULSE_SECONDS = 2.0
"""From one to the next."""


def write_heartbeat(directory: Path, values: Mapping[str, Any]) -> None:
    """Replace the file; a disk that has no room for it keeps the one before."""
    path = directory / HEARTBEAT
    temporary = directory / f".{HEARTBEAT}.{os.getpid()}.tmp"
    plain = {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in values.items()
    }
    with suppress(OSError):
        try:
            whose = {"time": time.time(), "host": os.uname().nodename, "pid": os.getpid()}
            temporary.write_text(json.dumps({**whose, **plain}) + "\n")
            temporary.replace(path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise


def read_heartbeat(directory: Path) -> dict[str, Any]:
    """The last sign of life; empty where there is none."""
    try:
        found = parse_json((directory / HEARTBEAT).read_bytes())
    except (OSError, ValueError):
        return {}
    is_one = isinstance(found, dict) and is_time(found.get("time")) and _is_host(found)
    return found if is_one else {}


def is_time(value: object) -> TypeGuard[float]:
    """Whether a file may mean a time in seconds since 1970."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e11


def _is_host(found: Mapping[str, Any]) -> bool:
    return isinstance(found.get("host"), str) and type(found.get("pid")) is int


LOCK = ".lock"
"""In a run directory; its launcher holds it."""
DIED = "died"
"""Of a run that ended without a word: killed, or its host went down."""

_UNDER_WAY = ("planning", "running")
_FRESH_SECONDS = 20.0
"""A heartbeat that is older is no sign of life."""
_STALLED_SECONDS = 60.0
_STALLED_STEPS = 5.0
"""A run without a step for longer than both, the second in its own steps, stalls."""


class RunState(NamedTuple):
    """What is known of a run from outside."""

    status: str
    """That of the manifest, or ``died``."""
    said: str
    """The same in words, for a run that is not complete."""
    beat: Mapping[str, Any]
    """Its heartbeat, empty where there is none."""
    seen: float | None
    """Its last sign of life, in seconds since 1970."""

    @property
    def last_step(self) -> float | None:
        """When its last step was, in seconds since 1970; None where that is not known."""
        found = self.beat.get("last_step_time")
        return found if is_time(found) else None

    def is_stalled(self, now: float) -> bool:
        """Whether it goes on, but has been without a step for far longer than its steps take."""
        if self.status != "running" or self.last_step is None:
            return False
        speed = self.beat.get("steps_per_second")
        usual = 1.0 / speed if isinstance(speed, int | float) and speed > 0 else 0.0
        return now - self.last_step > max(_STALLED_SECONDS, _STALLED_STEPS * usual)


def run_state(directory: RunDirectory, manifest: Mapping[str, Any]) -> RunState:
    """What a run is at; reads its heartbeat and asks for its lock."""
    written = str(manifest.get("status"))
    beat = read_heartbeat(directory.path)
    seen = float(beat["time"]) if beat else _changed(directory.manifest)
    silence = max(0.0, time.time() - (seen or 0.0))
    is_here = bool(beat) and beat["host"] == os.uname().nodename
    held = False
    if written in _UNDER_WAY:
        # To open a lock's file and close it again would let go of a lock of this very process.
        held = (is_here and beat["pid"] == os.getpid()) or is_held(directory.path / LOCK)
    status = decide(written, held, is_here or not beat, silence)
    return RunState(status, _said(status, written, beat, silence), beat, seen)


def decide(written: str, is_held: bool, is_here: bool, silence: float) -> str:
    """The status of a run.

    Args:
        written: what its manifest says.
        is_held: whether a process holds its lock, as far as this host can see.
        is_here: whether it would be one of this host.
        silence: seconds since its last sign of life.
    """
    if written not in _UNDER_WAY or is_held:
        return written
    return written if not is_here and silence < _FRESH_SECONDS else DIED


def is_held(lock: Path) -> bool:
    """Whether another process holds a lock; nothing is taken."""
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
    """A time that has passed, in words."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


def _said(status: str, written: str, beat: Mapping[str, Any], silence: float) -> str:
    where = f" on {beat['host']:.80}" if beat else ""
    if status == DIED:
        return (
            f"it ended without a word: its manifest says {written!r}, but no process holds it; "
            f"last sign of life {ago(silence)}{where}"
        )
    said = f"its manifest says {written!r:.80}"
    if status not in _UNDER_WAY or not beat:
        return said
    who = f"process {beat['pid']}{where}"
    how_far = f"step {beat.get('step')} of {beat.get('steps')}"
    return f"{said}: {who} is at it, {how_far}, last sign of life {ago(silence)}"


def _changed(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None


Row = Sequence[int]
"""Block, option, and whatever there is to say of it in nanoseconds and bytes."""

_LARGEST = 1 << 62


def write_costs(path: Path, columns: Sequence[str], rows: Iterable[Row]) -> None:
    """Write the rows; ``columns`` says what is in each.

    Raises:
        OSError: when it cannot be written.
    """
    write_json(path, {"columns": " ".join(columns), "rows": [" ".join(map(str, r)) for r in rows]})


def read_costs(path: Path, columns: Sequence[str]) -> list[tuple[int, ...]] | None:
    """The rows of a run; None where it has none, as runs that were planned without costs.

    Raises:
        ConfigError: when they are damaged, or have other columns.
    """
    if not path.exists():
        return None
    try:
        values = parse_json(path.read_text("utf-8"))
        rows = [tuple(map(int, row.split(" "))) for row in values["rows"]]
        is_good = values["columns"] == " ".join(columns)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        is_good, rows = False, []
    if not is_good or not all(_is_row(row, len(columns)) for row in rows):
        raise ConfigError(
            f"{path}: expected rows of {', '.join(columns)}, found something else; without the "
            f"file they are taken from the log"
        )
    return rows


def _is_row(row: tuple[int, ...], length: int) -> bool:
    return len(row) == length and all(0 <= value < _LARGEST for value in row)


RESERVED = ".reserved"
"""In a run directory whose run goes on."""

_MORE_BYTES = 8192
"""Room for a failure's message and for what was measured, beside twice the manifest."""


def reserve(directory: RunDirectory, manifest: Mapping[str, Any]) -> None:
    """Keep room for a manifest of a life that begins.

    Raises:
        StorageError: when there is none.
    """
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
    """Write the manifest of a life that ends now: into the room that was kept, if need be.

    Raises:
        OSError: when it cannot be written all the same.
    """
    if isinstance(manifest.get("provenance"), Mapping):
        manifest = {**manifest, "provenance": {**manifest["provenance"], "ended": time.time()}}
    kept: Path = directory.path / RESERVED
    try:
        directory.write_manifest(manifest)
    except OSError as error:
        if error.errno not in SPACE:
            raise
        kept.unlink(missing_ok=True)
        directory.write_manifest(manifest)
    kept.unlink(missing_ok=True)
