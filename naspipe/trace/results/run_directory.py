"""The run directory: where everything a run leaves behind is found."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Any, NoReturn

from naspipe.config.errors import ConfigError
from naspipe.config.ids import StageId
from naspipe.config.text import parse_json
from naspipe.trace.results.losses_file import Loss, read_losses
from naspipe.trace.snapshots.checkpoints import CheckpointFolder
from naspipe.trace.storage.whole_files import write_json

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
        """How the supernet did on held-out data; see ``naspipe.trace.results.validation_file``."""
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
        """Every recorded loss; see :func:`naspipe.trace.results.losses_file.read_losses`."""
        return read_losses(self.losses)
