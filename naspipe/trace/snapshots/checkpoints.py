"""The checkpoints of one run: made apart, whole by one rename, the newest few kept."""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from naspipe.config.errors import ConfigError, LogError
from naspipe.trace.snapshots.snapshot import (
    MANIFEST_NAME,
    Checkpoint,
    read_checkpoint,
    write_checkpoint_manifest,
)
from naspipe.trace.storage.whole_files import sync_directory

FINAL = "final"
_CUT = re.compile(r"subnet-([0-9]{9,18})")


def cut_name(cut: int) -> str:
    """The name of the checkpoint that holds every WRITE of the subnets below ``cut``."""
    return f"subnet-{cut:09d}"


class Latest(NamedTuple):
    """The newest checkpoint that is whole, and what was found of newer ones, a line each."""

    checkpoint: Checkpoint | None
    passed_over: tuple[str, ...] = ()


class CheckpointFolder:
    """A run's ``checkpoints`` directory; making the object touches no file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def working(self, name: str, generation: int) -> Path:
        """Where the shards of a checkpoint are written until all are there.

        The generation is part of the name: what a process of an earlier one may still write
        never becomes part of a later checkpoint.
        """
        return self.path / f".{name}.gen-{generation}"

    def publish(self, name: str, generation: int, manifest: Mapping[str, Any]) -> None:
        """Turn the shards of :meth:`working` into a checkpoint, at once and for good.

        A checkpoint of that name is replaced.
        """
        working, target = self.working(name, generation), self.path / name
        write_checkpoint_manifest(working, manifest)
        if target.exists():
            _remove(target)
        working.rename(target)
        sync_directory(self.path)

    def prune(self, keep: int, spared: Collection[int] = ()) -> None:
        """Remove all but the newest ``keep`` checkpoints of cuts, and those at ``spared`` ones."""
        for cut, path in self._cuts()[keep:]:
            if cut not in spared:
                _remove(path)

    def remove_beyond(self, cut: int) -> None:
        """Remove the checkpoints of later cuts: the run goes on at this one."""
        for later, path in self._cuts():
            if later > cut:
                _remove(path)

    def sweep(self) -> None:
        """Remove what earlier lives of the run left unfinished."""
        for path in self.path.glob(".*.gen-*"):
            shutil.rmtree(path, ignore_errors=True)

    def latest(self, up_to: int | None = None) -> Latest:
        """Read the newest whole checkpoint of a cut; damaged ones are passed over, and named.

        Args:
            up_to: the newest cut that is asked for; None for any.

        Raises:
            LogError: when there are checkpoints, but none that is whole.
        """
        passed_over: list[str] = []
        for cut, path in self._cuts():
            if up_to is not None and cut > up_to:
                continue
            try:
                checkpoint = read_checkpoint(path)
                if checkpoint.subnets != cut:
                    raise LogError(f"{path} holds {checkpoint.subnets} subnets, expected {cut}")
            except (LogError, ConfigError) as error:
                passed_over.append(str(error))
                continue
            return Latest(checkpoint, tuple(passed_over))
        if passed_over:
            raise LogError(
                f"{self.path}: expected a checkpoint that is whole, found none "
                f"({passed_over[0]}); restore one from a copy, or train anew"
            )
        return Latest(None)

    @property
    def cuts(self) -> list[int]:
        """Where there are checkpoints, whole or not, the newest first."""
        return [cut for cut, _ in self._cuts()]

    def _cuts(self) -> list[tuple[int, Path]]:
        """Checkpoints of cuts, whole or not, the newest first."""
        if not self.path.is_dir():
            return []
        found = ((_CUT.fullmatch(path.name), path) for path in self.path.iterdir())
        return sorted(((int(match[1]), path) for match, path in found if match), reverse=True)


def _remove(path: Path) -> None:
    """Remove a checkpoint; its manifest goes first, so that no half of it is taken for one."""
    (path / MANIFEST_NAME).unlink(missing_ok=True)
    shutil.rmtree(path)
