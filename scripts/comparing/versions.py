"""Two versions of the code, and their commands: each in a process that finds that version only."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from naspipe.data.cache import default_root

ROOT = Path(__file__).parents[2]
BOTH = Path(__file__).parent / "both"
"""Modules that either version imports."""

LIMIT_SECONDS = 900.0
"""Of one command; the slowest takes a minute on a quiet machine."""
_POLL_SECONDS = 0.01


class CompareError(Exception):
    """Nothing can be compared; one line says why."""


class Ended(NamedTuple):
    """How a command ended."""

    status: int
    out: str
    said: str
    """Its last line on stderr."""
    seconds: float


@dataclass(frozen=True, slots=True)
class Version:
    """A checkout of the code."""

    name: str
    """before or present."""
    root: Path
    revision: str

    @property
    def digest(self) -> str:
        """Of everything in it that a run's bits may depend on."""
        found = hashlib.blake2b(digest_size=8)
        for folder in ("naspipe", "search_spaces"):
            for path in sorted((self.root / folder).rglob("*")):
                if path.suffix in (".py", ".toml"):
                    name = path.relative_to(self.root).as_posix()
                    found.update(f"{name}\0".encode() + path.read_bytes())
        return found.hexdigest()

    def as_dict(self) -> dict[str, str]:
        """For the artifact."""
        return {"revision": self.revision, "source": self.digest}


def present() -> Version:
    """The code that this script belongs to."""
    return Version("present", ROOT, revision_of(ROOT))


@contextmanager
def version_before(before: str, folder: Path) -> Iterator[Version]:
    """The code to compare with: a checkout as it lies, or a revision in a work tree of its own.

    Args:
        before: a path to a checkout, or a revision of this repository.
        folder: where the work tree is made; it is gone afterwards.

    Raises:
        CompareError: when it is neither.
    """
    if (Path(before) / "naspipe/__init__.py").is_file():
        root = Path(before).resolve()
        yield Version("before", root, revision_of(root))
        return
    revision = _git(ROOT, "rev-parse", "--verify", "--quiet", f"{before}^{{commit}}")
    if not revision:
        raise CompareError(
            f"{before}: expected a revision of this repository or a path to a checkout, found "
            f"neither"
        )
    tree = folder / "before"
    try:
        if _git(ROOT, "worktree", "add", "--detach", "--quiet", str(tree), revision) is None:
            raise CompareError(f"{before}: expected a work tree of it in {folder}, git made none")
        yield Version("before", tree, revision_of(tree))
    finally:
        _git(ROOT, "worktree", "remove", "--force", str(tree))


def revision_of(root: Path) -> str:
    """The commit of a checkout, and whether its code was changed since."""
    commit = _git(root, "rev-parse", "--short=12", "HEAD")
    if commit is None:
        return "unknown"
    changed = _git(root, "status", "--porcelain", "--", "naspipe", "search_spaces")
    return f"{commit} with changes" if changed else commit


def _git(root: Path, *words: str) -> str | None:
    """What git says; None where it fails."""
    done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True)
    return None if done.returncode else done.stdout.strip()


class Workplace:
    """Where commands of both versions run: an empty working directory, and a cache of their own.

    The cache has the user's data sets. Profiles are measured by whichever version comes first and
    read by the other one, so both follow the same costs.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._here = folder / "here"
        self._cache = folder / "cache"
        self._here.mkdir(parents=True)
        (self._cache / "naspipe").mkdir(parents=True)
        (self._cache / "naspipe/data").symlink_to(default_root())

    def check(self, version: Version) -> None:
        """A process of a version must find the code of that version.

        Raises:
            CompareError: when it finds another one, or none.
        """
        code = "import naspipe, search_spaces as s; print(naspipe.__file__); print(s.__file__)"
        done = self.python(version, "-c", code)
        found = [Path(line) for line in done.out.splitlines()]
        if len(found) != 2 or not all(path.is_relative_to(version.root) for path in found):
            raise CompareError(
                f"{version.name}: expected processes to import the code in {version.root}, found "
                f"{', '.join(map(str, found)) or done.said}"
            )

    def naspipe(
        self, version: Version, *words: str, stop_when: Callable[[], bool] | None = None
    ) -> Ended:
        """One command line of naspipe."""
        return self.python(version, "-m", "naspipe", *words, stop_when=stop_when)

    def python(
        self, version: Version, *words: str, stop_when: Callable[[], bool] | None = None
    ) -> Ended:
        """One process of a version.

        Args:
            version: whose code it imports.
            words: behind the interpreter.
            stop_when: asked again and again; the process is told to end when it is true.
        """
        paths = {kind: self.folder / f"said.{kind}" for kind in ("out", "err")}
        start = time.monotonic()
        with paths["out"].open("wb") as out, paths["err"].open("wb") as err:
            process = subprocess.Popen(
                [sys.executable, *words], cwd=self._here, env=self._environment(version),
                stdin=subprocess.DEVNULL, stdout=out, stderr=err,
            )  # fmt: skip
            is_late = _wait(process, stop_when)
        seconds = round(time.monotonic() - start, 1)
        texts = {kind: path.read_text("utf-8", "replace") for kind, path in paths.items()}
        lines = [line.strip() for line in texts["err"].splitlines() if line.strip()]
        said = f"no end after {LIMIT_SECONDS:g} s" if is_late else "".join(lines[-1:])
        return Ended(process.returncode, texts["out"], said, seconds)

    def _environment(self, version: Version) -> dict[str, str]:
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(version.root), str(BOTH)]),
            "XDG_CACHE_HOME": str(self._cache),
        }


def _wait(process: subprocess.Popen[bytes], stop_when: Callable[[], bool] | None) -> bool:
    """Wait for the end; returns whether it had to be forced.

    What it is stopped by stands in a file that it writes, which nothing tells of: so it polls.
    """
    end = time.monotonic() + LIMIT_SECONDS
    try:
        while process.poll() is None and time.monotonic() < end:
            if stop_when is None:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(end - time.monotonic())
            elif stop_when():
                process.terminate()
                stop_when = None
            else:
                time.sleep(_POLL_SECONDS)
        return process.poll() is None
    finally:
        if process.poll() is None:  # too late, or this script is told to end
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(30)
            process.kill()
            process.wait()


def number_of_lines(path: Path) -> int:
    """Of a file that may not be there yet."""
    try:
        return path.read_bytes().count(b"\n")
    except OSError:
        return 0


def run_directories(path: Path) -> Sequence[Path]:
    """The run directory, or one for each stream."""
    streams = sorted(path.glob("stream-[0-9]*"), key=lambda each: int(each.name[7:]))
    return streams or [path]
