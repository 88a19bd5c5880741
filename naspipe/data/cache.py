"""The directory of prepared data sets, and the display of their preparation.

A data set is published completely or not at all, and verified file by file when it is opened.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from naspipe.config.errors import DataError, NotPreparedError
from naspipe.config.text import parse_json

RECORD_FILE = "record.json"
RECORD_FORMAT = 1
_STALE_SECONDS = 60.0
_PUBLISH_ATTEMPTS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What a builder knows about the data set that it has just written."""

    source: str
    """Packages or library that the data came from."""
    version: str
    """Version of that source, ``unknown`` if the source has none."""
    licence: str
    recipe: int
    """Version of the preparation; another version creates other data from the same source."""
    counts: Mapping[str, int]
    """Numbers of pairs, images, words, ...: anything that helps to recognise the data."""


def default_root() -> Path:
    """Return ``$XDG_CACHE_HOME/naspipe/data``, or ``~/.cache/naspipe/data``."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification says that relative paths must be ignored.
    home = Path(base) if Path(base).is_absolute() else Path.home() / ".cache"
    return home / "naspipe" / "data"


def prepare_command(name: str, root: Path, *, force: bool = False) -> str:
    """Return the command line that prepares ``name`` in ``root``, for error messages."""
    command = f"naspipe data prepare {name}"
    if root != default_root():
        command += f" --data-dir {root}"
    return command + " --force" if force else command


def publish(
    root: Path, name: str, build: Callable[[Path], Description], *, force: bool = False
) -> Path:
    """Create data set ``name`` under ``root`` with ``build`` and return its directory.

    ``build`` fills an empty directory next to the target, which is renamed to the target only when
    it is complete. Several processes may publish at once: the first to finish wins and the others
    use its result (with ``force``, the last to finish wins).
    """
    target = root / name
    if target.exists() and not force:
        return target
    with _workplace(root, name) as partial:
        description = build(partial)
        record = {
            "format": RECORD_FORMAT,
            "name": name,
            **asdict(description),
            "files": {path.name: file_record(path) for path in sorted(partial.iterdir())},
        }
        text = json.dumps(record, indent=2, ensure_ascii=False) + "\n"
        (partial / RECORD_FILE).write_text(text, "utf-8")
        _install(partial, target, force=force)
    return target


def file_record(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"bytes": path.stat().st_size, "sha256": digest}


def open_prepared(root: Path, name: str, recipe: int) -> tuple[Path, dict[str, Any]]:
    """Return the directory and the record of ``name``; check every file's size and SHA-256."""
    target = root / name
    if not target.is_dir():
        raise NotPreparedError(
            name,
            root,
            f"data set '{name}' is not prepared in {root}: run '{prepare_command(name, root)}'",
        )
    repair = f"repair it with '{prepare_command(name, root, force=True)}'"
    record_path = target / RECORD_FILE
    try:
        record: dict[str, Any] = parse_json(record_path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{record_path}: cannot be read ({error}): {repair}") from None
    if not _is_record(record):
        raise DataError(
            f"{record_path}: not a data set's record of format {RECORD_FORMAT}: {repair}"
        )
    if record["recipe"] != recipe:
        raise DataError(
            f"{target}: prepared by recipe {record['recipe']}, this naspipe expects recipe "
            f"{recipe}: {repair}"
        )
    for file_name, expected in record["files"].items():
        path = target / file_name
        try:
            size = path.stat().st_size
            if size != expected["bytes"]:
                raise DataError(
                    f"{path}: expected {expected['bytes']} bytes, found {size}: {repair}"
                )
            found = file_record(path)
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror}): {repair}") from None
        if found["sha256"] != expected["sha256"]:
            raise DataError(
                f"{path}: expected SHA-256 {expected['sha256'][:16]}…, found "
                f"{found['sha256'][:16]}…: {repair}"
            )
    return target, record


def _is_record(record: object) -> bool:
    if not isinstance(record, dict) or record.get("format") != RECORD_FORMAT:
        return False
    kinds = {"name": str, "source": str, "version": str, "recipe": int, "counts": dict}
    if not all(isinstance(record.get(key), kind) for key, kind in kinds.items()):
        return False
    files = record.get("files")
    return isinstance(files, dict) and all(
        name == Path(name).name
        and isinstance(entry, dict)
        and isinstance(entry.get("bytes"), int)
        and isinstance(entry.get("sha256"), str)
        for name, entry in files.items()
    )


@contextmanager
def _workplace(root: Path, name: str) -> Iterator[Path]:
    """Yield an empty directory next to the target, which is removed afterwards unless renamed."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        _sweep(root, name)
        partial = Path(tempfile.mkdtemp(prefix=f".{name}.partial-", dir=root))
    except OSError as error:
        raise DataError(
            f"{root}: cannot be written ({error.strerror}): name another directory with --data-dir"
        ) from None
    descriptor = os.open(partial, os.O_RDONLY)
    try:
        # The lock shows that the owner is running; it is released when the process ends in any way.
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        partial.chmod(0o755)
        yield partial
    finally:
        os.close(descriptor)
        shutil.rmtree(partial, ignore_errors=True)


def _sweep(root: Path, name: str) -> None:
    """Remove files left by processes that died while preparing ``name``."""
    for partial in sorted(root.glob(f".{name}.partial-*")):
        with suppress(OSError):
            if time.time() - partial.stat().st_mtime < _STALE_SECONDS:
                continue
            descriptor = os.open(partial, os.O_RDONLY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(partial, ignore_errors=True)
            finally:
                os.close(descriptor)


def _install(partial: Path, target: Path, *, force: bool) -> None:
    for _ in range(_PUBLISH_ATTEMPTS):
        try:
            partial.rename(target)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise DataError(
                    f"{target}: cannot be written ({error.strerror}): name another directory "
                    f"with --data-dir"
                ) from None
        if not force:
            return  # another process was first; its result is equivalent
        old = Path(tempfile.mkdtemp(prefix=f".{target.name}.partial-", dir=target.parent))
        with suppress(FileNotFoundError):  # another process has just removed it
            target.rename(old)
        shutil.rmtree(old, ignore_errors=True)
    raise DataError(f"{target}: other processes keep replacing it: let them end, then try again")


class PreparationProgress:
    """Receives the phases of a preparation, in order, and displays nothing."""

    def phase(self, text: str, total: int | None = None) -> None:
        """End the current phase and begin another of ``total`` steps (None: number unknown)."""

    def advance(self, steps: int = 1) -> None:
        """Count ``steps`` more steps of the current phase."""


class ConsoleProgress(PreparationProgress):
    """One line per phase on standard error; a context manager that owns the display.

    Nothing is shown before the first phase.
    """

    def __init__(self) -> None:
        # The file is fixed here, so that redirecting stderr to silence a library does not affect
        # this display.
        self._progress = Progress(
            SpinnerColumn(finished_text="✓"),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=Console(file=sys.stderr),
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._open: TaskID | None = None

    def __enter__(self) -> ConsoleProgress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self._finish()
        if self._progress.live.is_started:
            self._progress.stop()

    def phase(self, text: str, total: int | None = None) -> None:
        self._finish()
        self._progress.start()
        self._open = self._progress.add_task(text, total=total)

    def advance(self, steps: int = 1) -> None:
        if self._open is not None:
            self._progress.advance(self._open, steps)

    def _finish(self) -> None:
        if self._open is None:
            return
        task = next(task for task in self._progress.tasks if task.id == self._open)
        total = task.total if task.total is not None else max(task.completed, 1)
        self._progress.update(self._open, total=total, completed=total)
        self._open = None


Builder = Callable[[Path, str, Path | None, PreparationProgress], Description]
"""(empty directory to fill, name, local source that replaces the download, progress)."""

Opener = Callable[[Path, int, str, dict[str, Any]], Any]
"""(prepared directory, batch size, split, record for the manifest) -> ``ImageData``."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A data set, as listed by `naspipe data list`."""

    name: str
    summary: str
    kind: str
    """``translation``, ``masked words``, ``image`` or ``image views``; spaces require a kind."""
    recipe: int = 0
    """Version of the preparation; see `naspipe.data.cache.Description`."""
    build: Builder | None = None
    """Prepares the data set; None if nothing has to be prepared."""
    open: Opener | None = None
    """Opens prepared images. Prepared translation data are opened as `TranslationData`."""
