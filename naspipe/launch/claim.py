"""The launcher's ownership of a run directory, and the publication of checkpoints in it.

A run directory belongs to one launcher at a time; remaining stages of earlier ones are killed.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import tempfile
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Any, Self

from naspipe.config.errors import ConfigError, StorageError, reason
from naspipe.config.text import parse_json
from naspipe.store.checkpoints import CheckpointFolder, cut_name
from naspipe.store.files import write_json
from naspipe.store.losses import SectionLosses
from naspipe.store.run_directory import LOCK
from naspipe.wire.endpoints import SOCKETS_PREFIX
from naspipe.worker.checkpoints.checkpointer import CheckpointReader

_PROCESSES = ".processes.json"


class Claim:
    """Holds a lock on the directory of a run, which must exist; a context manager.

    The kernel releases the lock at the end of the process, however it ends. Stages, which are
    forked, do not inherit it. A killed launcher therefore never blocks a resume, and its remaining
    stages (stopped, or about to end) are killed.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file: FileIO | None = None

    def __enter__(self) -> Self:
        try:
            self._file = (self._directory / LOCK).open("a+b", buffering=0)
        except OSError as error:
            raise ConfigError(
                f"run directory {self._directory} cannot be written: {error.strerror}"
            ) from error
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._file.seek(0)
            owner = self._file.read(20).decode("ascii", "replace").strip() or "unknown"
            self._file.close()
            raise ConfigError(
                f"run directory {self._directory}: expected one that nobody trains, found process "
                f"{owner} at it; wait for it, or end it first"
            ) from error
        self._file.truncate(0)
        with suppress(OSError):  # for messages only; the lock decides
            self._file.write(str(os.getpid()).encode())
        end_processes(self._directory)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._file is not None:
            (self._directory / _PROCESSES).unlink(missing_ok=True)
            self._file.close()


def record_processes(directory: Path, pids: Iterable[int], sockets: Path | None = None) -> None:
    """Record the stages of a run and the directory of their sockets.

    A later attempt can then kill stages that outlive their launcher, and remove their sockets.
    """
    started = {str(pid): start_ticks(pid) for pid in pids}
    found = {"host": os.uname().nodename, "started": started, "sockets": str(sockets or "")}
    write_json(directory / _PROCESSES, found)


def end_processes(directory: Path) -> list[int]:
    """Kill the recorded stages that still exist; returns their process IDs.

    A process with the same ID but a different start time is not killed.
    """
    path = directory / _PROCESSES
    try:
        found = parse_json(path.read_bytes())
        started = {int(pid): int(ticks) for pid, ticks in found["started"].items()}
        is_here = found["host"] == os.uname().nodename
        sockets = Path(found["sockets"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []
    ended = []
    for pid, ticks in started.items():
        if is_here and ticks and start_ticks(pid) == ticks:
            os.kill(pid, signal.SIGKILL)
            ended.append(pid)
    is_ours = sockets.name.startswith(SOCKETS_PREFIX)
    if is_here and is_ours and sockets.parent == Path(tempfile.gettempdir()):
        shutil.rmtree(sockets, ignore_errors=True)
    path.unlink(missing_ok=True)
    return ended


def start_ticks(pid: int) -> int:
    """Return the start time of a process in ticks since the machine's boot; 0 if unknown."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rpartition(")")[2].split()
        return int(fields[19])
    except (OSError, ValueError, IndexError):
        return 0


_MERGED = ("versions", "history", "scalars", "strides")


@dataclass(slots=True)
class Publisher:
    """Publishes each checkpoint when every stage has written its part.

    Args:
        stages: for each stream, the stages that write a part of its checkpoints.
        generation: the generation of the run, used in file names.
        folders: the checkpoint folder of each stream.
        losses: the losses of each stream; those before a checkpoint are flushed to disk with it.
        keep: number of checkpoints to keep per stream.
        reader: receives each checkpoint; checkpoints that it still needs are also kept.
        joined: groups of streams that can only continue at a common cut: the newest common
            checkpoint is kept, and newer ones of streams that are ahead, because they will become
            common.
        may_publish: returns True if the first steps before a cut have been compared with the plain
            loop.
    """

    stages: Sequence[Collection[int]]
    generation: int
    folders: Sequence[CheckpointFolder]
    losses: Sequence[SectionLosses]
    keep: int
    reader: CheckpointReader
    joined: Sequence[Collection[int]] = ()
    may_publish: Callable[[int], bool] = lambda cut: True
    newest: dict[int, int] = field(default_factory=dict)
    """The cut of the last published checkpoint of each stream."""
    _held: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    """Parts of checkpoints that may not be published yet."""
    _parts: dict[tuple[int, int], dict[int, dict[str, Any]]] = field(
        default_factory=lambda: defaultdict(dict)
    )

    def take(self, stage: int, part: dict[str, Any]) -> None:
        """Handle a part that a stage has written; raise errors as :meth:`publish_held` does."""
        self._held.append((stage, part))
        self.publish_held()

    def publish_held(self) -> None:
        """Publish the checkpoints that are complete and may be published.

        Raises:
            StorageError: if a checkpoint cannot be published.
        """
        while self._held and self.may_publish(self._held[0][1]["cut"]):
            self._publish(*self._held.pop(0))

    def _publish(self, stage: int, part: dict[str, Any]) -> None:
        stream, cut = part["stream"], part["cut"]
        parts = self._parts[stream, cut]
        parts[stage] = part
        if len(parts) < len(self.stages[stream]):
            return
        del self._parts[stream, cut]
        manifest = merge_parts(cut, [parts[number] for number in sorted(parts)])
        manifest["generation"] = self.generation
        try:
            manifest["losses"] = list(self.losses[stream].sync(cut))
            self.folders[stream].publish(cut_name(cut), self.generation, manifest)
            self.reader.published(stream, cut)
            self._prune(stream)
        except OSError as error:
            raise StorageError(
                f"checkpoint at subnet {cut}: it cannot be published: {reason(error)}; the "
                f"checkpoints before it are still good"
            ) from error
        self.newest[stream] = cut

    def _prune(self, stream: int) -> None:
        together = next((each for each in self.joined if stream in each), (stream,))
        cuts = [set(self.folders[number].cuts) for number in together]
        newest_of_all = max(set.intersection(*cuts), default=0)
        newest_of_slowest = min(max(own, default=0) for own in cuts)
        for number, own in zip(together, cuts, strict=True):
            to_come = (cut for cut in own if cut > newest_of_slowest)
            spared = {*self.reader.needed(number), newest_of_all, *to_come}
            self.folders[number].prune(self.keep, spared)


def merge_parts(subnets: int, parts: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Combine the parts of the stages into the manifest of a checkpoint."""
    manifest: dict[str, Any] = {"subnets": subnets, "shards": []}
    manifest |= {kind: {} for kind in _MERGED}
    for part in parts:
        manifest["shards"].append(part["shard"])
        for kind in _MERGED:
            manifest[kind] |= part[kind]
    return manifest
