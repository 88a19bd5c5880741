"""Fetch and unpack Debian packages without root and without changing the system's own state."""

from __future__ import annotations

import gzip
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from naspipe.config.errors import DataError

UPDATE_SECONDS = 180.0
DOWNLOAD_SECONDS = 300.0
UNPACK_SECONDS = 120.0

# Hooks of the system's own configuration would modify the system, so they are removed.
_CONFIGURATION = """\
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
#clear DPkg::Pre-Invoke;
#clear DPkg::Post-Invoke;
"""


@dataclass(frozen=True, slots=True)
class Package:
    """An unpacked Debian package, with its files under ``directory`` as ``usr/share/…``."""

    name: str
    version: str
    directory: Path


def unpacked(
    names: Sequence[str], work: Path, *, dataset: str, source: Path | None = None
) -> dict[str, Package]:
    """Return packages ``names`` unpacked, downloaded unless ``source`` contains them.

    ``source`` may be a .deb file (other packages' files are searched for in the same directory), a
    directory of .deb files, or a directory into which the packages were unpacked (all into one, or
    each into a folder of its own name). ``work`` is the caller's scratch directory.
    """
    try:
        if source is None:
            files = _download(names, work)
        else:
            found = [_locate(name, source) for name in names]
            files = dict(zip(names, found, strict=True))
        return {name: _open(name, path, work / "unpacked" / name) for name, path in files.items()}
    except DataError as error:
        listed = ", ".join(names)
        advice = f"or get {listed} elsewhere and run" if source is None else f"get {listed} and run"
        raise DataError(
            f"data set '{dataset}': {error}; {advice} 'naspipe data prepare {dataset} --from "
            f"PATH' (a .deb file, or a directory of .deb files or of their unpacked content)"
        ) from None


def _locate(name: str, source: Path) -> Path:
    if source.is_file():
        if source.name.startswith(f"{name}_") or _package_field(source, "Package") == name:
            return source
        source = source.parent
    if not source.is_dir():
        raise DataError(f"{source}: expected a .deb file or a directory, found nothing")
    debs = sorted(source.glob(f"{name}_*.deb"))
    if len(debs) > 1:
        listed = ", ".join(deb.name for deb in debs)
        raise DataError(f"{source}: expected one file of package {name}, found {listed}")
    if debs:
        return debs[0]
    for folder in (source / name, source):
        if (folder / "usr" / "share" / "doc" / name).is_dir():
            return folder
    raise DataError(
        f"{source}: expected {name}_*.deb or usr/share/doc/{name} of an unpacked package, "
        f"found neither"
    )


def _open(name: str, path: Path, destination: Path) -> Package:
    if path.is_dir():
        return Package(name, _version_of_unpacked(name, path), path)
    version = _package_field(path, "Version")
    destination.mkdir(parents=True)
    _run(["dpkg-deb", "-x", str(path), str(destination)], UNPACK_SECONDS, f"unpack {path.name}")
    return Package(name, version, destination)


def _package_field(deb: Path, field: str) -> str:
    command = ["dpkg-deb", "-f", str(deb), field]
    return _run(command, UNPACK_SECONDS, f"read {deb.name}").strip()


def _version_of_unpacked(name: str, directory: Path) -> str:
    changelog = directory / "usr" / "share" / "doc" / name / "changelog.Debian.gz"
    try:
        with gzip.open(changelog, "rt", encoding="utf-8") as file:
            first = file.readline(1000)
    except (OSError, EOFError, UnicodeDecodeError):
        return "unknown"
    match = re.match(r"\S+ \(([^)\s]+)\)", first)
    return match.group(1) if match else "unknown"


def _download(names: Sequence[str], work: Path) -> dict[str, Path]:
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise DataError("apt-get and dpkg-deb are needed to fetch it and are not on this machine")
    options = _private_apt(work / "apt")
    target = work / "debs"
    target.mkdir(parents=True)
    before = ""
    try:
        _run(["apt-get", *options, "-q", "update"], UPDATE_SECONDS, "update apt's package lists")
    except DataError as error:
        # One broken source does not matter if another one has the packages.
        before = f"{error}; "
    try:
        command = ["apt-get", *options, "-q", "download", *names]
        _run(command, DOWNLOAD_SECONDS, f"download {', '.join(names)}", directory=target)
    except DataError as error:
        raise DataError(f"{before}{error}; check the network and apt's sources") from None
    return {name: _locate(name, target) for name in names}


def _private_apt(place: Path) -> list[str]:
    """Return options that keep the system's sources and keys and move all of apt's state."""
    for folder in ("lists/partial", "cache/archives/partial", "log"):
        (place / folder).mkdir(parents=True)
    status = place / "status"
    status.touch()
    configuration = place / "apt.conf"
    configuration.write_text(_CONFIGURATION, "utf-8")
    settings = {
        "Dir::State": place,
        "Dir::State::Lists": place / "lists",
        "Dir::State::Status": status,
        "Dir::Cache": place / "cache",
        "Dir::Cache::Archives": place / "cache" / "archives",
        "Dir::Log": place / "log",
        "APT::Sandbox::User": "root",  # no other user can write to this private directory
        "APT::Update::Error-Mode": "any",  # otherwise an unreachable mirror is only a warning
        "Acquire::Languages": "none",
        "Acquire::Retries": "2",
        "Acquire::http::Timeout": "20",
        "Acquire::https::Timeout": "20",
    }
    options = ["-c", str(configuration)]
    for key, value in settings.items():
        options += ["-o", f"{key}={value}"]
    return options


def _run(
    command: Sequence[str], deadline_seconds: float, purpose: str, directory: Path | None = None
) -> str:
    """Return the command's output; at the deadline the command and its children are killed."""
    environment = {**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                cwd=directory,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            raise DataError(
                f"cannot {purpose}: {command[0]} does not start ({error.strerror})"
            ) from None
        try:
            status = process.wait(deadline_seconds)
        except subprocess.TimeoutExpired:
            raise DataError(
                f"cannot {purpose}: {command[0]} was not done after {deadline_seconds:g} s"
            ) from None
        finally:
            _end(process)
        output.seek(0)
        errors.seek(0)
        if status != 0:
            cause = _first_complaint(errors.read(100_000).decode("utf-8", "replace"))
            raise DataError(f"cannot {purpose}: {command[0]}: {cause or f'exit status {status}'}")
        return output.read(100_000).decode("utf-8", "replace")


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _first_complaint(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    serious = [line for line in lines if line.startswith(("E:", "dpkg-deb: error"))]
    return (serious or lines or [""])[0]
