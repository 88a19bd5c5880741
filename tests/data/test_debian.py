"""Packages from files, from unpacked directories, and without a network."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

import pytest

from naspipe.config.errors import DataError
from search_spaces.debian import packages
from search_spaces.debian.packages import unpacked

from .conftest import write_package

needs_dpkg = pytest.mark.skipif(
    shutil.which("dpkg-deb") is None, reason="dpkg-deb is not on this machine"
)


def fetch(work: Path, source: Path | None, *names: str) -> dict[str, packages.Package]:
    return unpacked(names or ("pack-a",), work, dataset="x", source=source)


def make_deb(directory: Path, name: str, version: str) -> Path:
    root = directory / f"tree-{name}"
    write_package(root, name, {f"usr/share/{name}/hello": name}, version)
    (root / "DEBIAN").mkdir()
    control = f"Package: {name}\nVersion: {version}\nArchitecture: all\n"
    control += "Maintainer: nobody <nobody@example.org>\nDescription: test\n"
    (root / "DEBIAN" / "control").write_text(control)
    deb = directory / f"{name}_{version}_all.deb"
    subprocess.run(["dpkg-deb", "--build", str(root), str(deb)], check=True, capture_output=True)
    shutil.rmtree(root)
    return deb


@needs_dpkg
def test_deb_files(tmp_path: Path) -> None:
    first = make_deb(tmp_path, "pack-a", "1.5-2")
    make_deb(tmp_path, "pack-b", "2.0")
    for number, source in enumerate((tmp_path, first)):
        found = fetch(tmp_path / f"work{number}", source, "pack-a", "pack-b")
        assert found["pack-a"].version == "1.5-2"
        hello = found["pack-b"].directory / "usr" / "share" / "pack-b" / "hello"
        assert hello.read_text() == "pack-b"


@needs_dpkg
def test_damaged_and_ambiguous_deb(tmp_path: Path) -> None:
    deb = make_deb(tmp_path, "pack-a", "1.5-2")
    renamed = deb.rename(tmp_path / "other-name.deb")
    assert fetch(tmp_path / "work", renamed)["pack-a"].version == "1.5-2"
    renamed.write_bytes(renamed.read_bytes()[:300])
    with pytest.raises(DataError, match=r"data set 'x': cannot .* other-name\.deb: dpkg-deb: "):
        fetch(tmp_path / "work2", renamed)
    renamed.rename(tmp_path / "pack-a_1_all.deb")
    make_deb(tmp_path, "pack-a", "3")
    with pytest.raises(DataError, match="expected one file of package pack-a, found"):
        fetch(tmp_path / "work3", tmp_path)


def test_unpacked_directories(tmp_path: Path) -> None:
    write_package(tmp_path / "each" / "pack-a", "pack-a", {})
    write_package(tmp_path / "all", "pack-a", {}, "7")
    write_package(tmp_path / "all", "pack-b", {}, "8")
    assert fetch(tmp_path / "work", tmp_path / "each")["pack-a"].version == "1:2.3-4"
    found = fetch(tmp_path / "work", tmp_path / "all", "pack-a", "pack-b")
    assert [found["pack-a"].version, found["pack-b"].version] == ["7", "8"]
    changelog = tmp_path / "all/usr/share/doc/pack-a/changelog.Debian.gz"
    changelog.write_bytes(b"not gzip")
    assert fetch(tmp_path / "work", tmp_path / "all")["pack-a"].version == "unknown"


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"expected pack-a_.*found neither; get pack-a and run"):
        fetch(tmp_path / "work", tmp_path)
    with pytest.raises(DataError, match=r"expected a .deb file or a directory, found nothing"):
        fetch(tmp_path / "work", tmp_path / "nowhere")


def test_machine_without_apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DataError, match=r"not on this machine.*naspipe data prepare x --from PATH"):
        fetch(tmp_path / "work", None)


def fake_apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in (("apt-get", script), ("dpkg-deb", "exit 0")):
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")


def test_machine_without_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_apt(tmp_path, monkeypatch, 'echo "W: hm" >&2; echo "E: no route to mirror" >&2; exit 100')
    with pytest.raises(DataError) as caught:
        fetch(tmp_path / "work", None)
    message = str(caught.value)
    assert "cannot update apt's package lists: apt-get: E: no route to mirror" in message
    assert "check the network" in message
    assert "--from PATH" in message
    assert "\n" not in message


def test_deadline_ends_all_that_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "mark"
    fake_apt(tmp_path, monkeypatch, f"(sleep 1.5; touch {mark}) & wait")
    monkeypatch.setattr(packages, "UPDATE_SECONDS", 0.3)
    monkeypatch.setattr(packages, "DOWNLOAD_SECONDS", 0.3)
    with pytest.raises(DataError, match=r"apt-get was not done after 0\.3 s"):
        fetch(tmp_path / "work", None)
    time.sleep(1.5)
    assert not mark.exists()


def test_apts_state_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"
    fake_apt(
        tmp_path,
        monkeypatch,
        f'echo "$@" >> {log}; cd {tmp_path / "work"}/debs && touch pack-a_1_all.deb',
    )
    with pytest.raises(DataError):  # the empty file is no package: dpkg-deb gives no version
        monkeypatch.setattr(packages, "_package_field", lambda deb, field: 1 / 0)
        try:
            fetch(tmp_path / "work", None)
        except ZeroDivisionError:
            raise DataError("reached the download") from None
    for line in log.read_text().splitlines():
        for setting in ("Dir::State=", "Dir::State::Lists=", "Dir::Cache=", "Dir::State::Status="):
            assert f"{setting}{tmp_path / 'work'}/apt" in line
        assert "Dir::Etc" not in line
