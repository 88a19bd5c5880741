"""A command prepares the data set that it needs, once, and says so."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from naspipe.cli.main import main
from naspipe.data import registry
from naspipe.store.run_directory import RunDirectory
from tests.data.test_registry import write_fashion

WORDS = ("cv.c3", "--steps", "1", "--data-dir", "cache", "--quiet", "--set", "data.batch_size=2")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Has preparations take a package that lies here, not one that is fetched; names them."""
    monkeypatch.chdir(tmp_path)
    write_fashion(tmp_path / "package")
    prepare, asked = registry.prepare, []

    @functools.wraps(prepare)
    def from_package(name, **how):
        asked.append(name)
        return prepare(name, source=tmp_path / "package", **how)

    monkeypatch.setattr(registry, "prepare", from_package)
    return asked


def test_missing_data_is_prepared_once(package, capsys):
    for number in range(2):
        assert main(["train", *WORDS, "--run-dir", f"run{number}"]) == 0, capsys.readouterr().err
        said = capsys.readouterr().err
        assert ("'fashion-mnist' is not prepared yet; it will be in cache" in said) == (number == 0)
    assert package == ["fashion-mnist"]
    assert RunDirectory(Path("run0")).read_manifest()["status"] == "complete"


def test_a_command_can_be_told_not_to(package, capsys):
    assert main(["train", *WORDS, "--no-prepare", "--run-dir", "run"]) == 2
    assert "not prepared in cache: run 'naspipe data prepare" in capsys.readouterr().err
    assert not package and not Path("run").exists() and not Path("cache").exists()


def test_workers_of_torchrun_do_not(package, monkeypatch, capsys):
    place = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    assert main(["train", *WORDS, "--run-dir", "run"]) == 2
    assert "naspipe data prepare fashion-mnist" in capsys.readouterr().err and not package


def test_what_cannot_be_prepared_is_said_once(package, capsys, tmp_path):
    for path in sorted((tmp_path / "package").rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    assert main(["profile", "cv.c3", "--data-dir", "cache"]) == 2
    *_, line = capsys.readouterr().err.splitlines()
    assert line.startswith("naspipe: ") and package == ["fashion-mnist"]
