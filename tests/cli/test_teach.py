"""``naspipe teach``: labels into a file, and one more teacher for a run."""

from __future__ import annotations

import argparse
import signal
from pathlib import Path

import pytest

from naspipe.cli import teach
from naspipe.cli.main import main
from naspipe.config.errors import ConfigError
from naspipe.distill.teacher_card import own_pair
from naspipe.store.compare import compare_runs
from naspipe.store.teacher_events import read_teacher_events
from tests.distill.servers import redis_server
from tests.forked import Fork

TRAIN = (
    "train", "vgg8", "--data", "digits", "--set", "data.batch_size=8", "--quiet", "--steps", "12",
)  # fmt: skip


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("teacher") / "run"
    assert main([*TRAIN, "--seed", "8", "--run-dir", str(path)]) == 0
    return path


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory, teacher: Path) -> Path:
    path = tmp_path_factory.mktemp("taught") / "run"
    assert main([*TRAIN, "--seed", "3", "--teacher", str(teacher), "--run-dir", str(path)]) == 0
    return path


def assert_same(one: Path, other: Path) -> None:
    (found,) = compare_runs([one, other])
    assert found.is_identical, str(found)


def test_labels_in_a_file(tmp_path: Path, teacher: Path, taught: Path) -> None:
    file = tmp_path / "labels"
    words = ["teach", str(teacher), "--to", str(file), "--batches", "12", "--seed", "3", "--quiet"]
    assert main(words) == 0
    more = ["--seed", "3", "--teacher", str(teacher), "--labels", f"file:{file}"]
    assert main([*TRAIN, *more, "--stages", "2", "--run-dir", str(tmp_path / "run")]) == 0
    assert_same(taught, tmp_path / "run")
    assert main(words) == 2  # it is there already


def test_labels_of_the_greatest_scores(tmp_path: Path, teacher: Path, taught: Path) -> None:
    """From the pipeline and from a file; a run that learns all of them is another one."""
    file = tmp_path / "labels"
    words = ["teach", str(teacher), "--top", "3", "--to", str(file), "--batches", "12"]
    assert main([*words, "--seed", "3", "--quiet"]) == 0
    more = ["--seed", "3", "--teacher", str(teacher), "--teacher-top", "3"]
    for name, labels in (("one", []), ("two", ["--labels", f"file:{file}"])):
        assert main([*TRAIN, *more, *labels, "--run-dir", str(tmp_path / name)]) == 0
    assert_same(tmp_path / "one", tmp_path / "two")
    assert "teacher" in compare_runs([taught, tmp_path / "one"])[0].reason
    other = [*TRAIN, *more[:-1], "4", "--labels", f"file:{file}", "--run-dir", str(tmp_path / "no")]
    assert main(other) == 2  # labels of another teacher


def test_a_teacher_that_joins(tmp_path: Path, teacher: Path, taught: Path) -> None:
    (tmp_path / "known").write_text(own_pair(tmp_path / "key")[0] + "\n")
    with redis_server(tmp_path) as server:
        command = ["teach", str(teacher), "--registry", server.url, "--key", str(tmp_path / "key")]
        command += ["--stages", "2"]
        with Fork(main, command) as process:
            more = ["--seed", "3", "--teacher", str(teacher), "--labels", "service"]
            more += ["--set", f"teacher_registry={server.url}"]
            more += ["--set", f"teacher_keys={tmp_path / 'known'}"]
            assert main([*TRAIN, *more, "--run-dir", str(tmp_path / "run")]) == 0
            process.signal(signal.SIGTERM)
            ended, said = process.join(30), process.said
    assert ended == 0, said
    assert "public key" in said and "a student of seed 3 is served" in said
    assert int(said.strip().splitlines()[-1].split()[1]) >= 12
    assert_same(taught, tmp_path / "run")
    joined = [each for each in read_teacher_events(tmp_path / "run") if each["event"] == "joined"]
    assert len(joined) == 1


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["teach", "TEACHER"], "expected either --to FILE or --registry URL"),
        (["teach", "TEACHER", "--to", "x"], "--to: expected --batches N with it"),
        (["teach", "TEACHER", "--registry", "http://x"], "expected redis://HOST or tcp://"),
        (["teach", "TEACHER", "--registry", "tcp://host"], "expected redis://HOST or tcp://"),
        (["teach", "TEACHER", "--registry", "redis://x", "--ttl", "0"], "teacher_ttl: expected"),
        (["teach", "TEACHER", "--registry", "redis://x", "--ttl", "nan"], "teacher_ttl: expected"),
        (["teach", "TEACHER", "--registry", "redis://x", "--port", "70000"], "--port: expected 0"),
        (["teach", "TEACHER", "--to", "no/where", "--batches", "2"], "expected a folder"),
        (["teach", "TEACHER", "--to", "x", "--batches", "2", "--device", "foo"], "device: expect"),
        (["teach", "TEACHER", "--to", "x", "--batches", "2", "--device", "cuda"], "no CUDA device"),
        (["teach", "TEACHER", "--registry", "redis://x", "--stages", "99"], "99 for 8 blocks"),
        (["teach", "nothing", "--to", "x", "--batches", "2"], "nothing is not a run directory"),
        ([*TRAIN, "--teacher", "TEACHER", "--labels", "service"], "expected --teachers N or"),
        ([*TRAIN, "--teacher", "TEACHER", "--teachers", "2"], "expected labels=service with them"),
        ([*TRAIN, "--labels", "inline"], "labels=inline: expected a frozen teacher"),
        (
            [*TRAIN, "--teacher", "TEACHER", "--labels", "file:nowhere"],
            "labels: expected a file of labels at nowhere, found No such file",
        ),
        (
            [*TRAIN, "--teacher", "TEACHER", "--set", "labels_again=64"],
            "labels_again: expected less than labels_ahead=64, found 64",
        ),
        (
            [*TRAIN, "--teacher", "TEACHER", "--set", "teacher_ttl=0"],
            "teacher_ttl: expected more than 0, at most 86400",
        ),
    ],
)
def test_bad_input_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    teacher: Path,
    words: list[str],
    text: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    command = [str(teacher) if word == "TEACHER" else word for word in words]
    assert main(command) == 2
    said = capsys.readouterr().err
    assert text in said and said.count("\n") == 1, said
    assert not list(tmp_path.iterdir())


def test_nothing_is_imported_because_a_student_says_so(teacher: Path) -> None:
    """A student names its data; a teacher opens what it was given, or what the library has."""
    given = parser().parse_args([str(teacher), "--registry", "tcp://x:1"])
    with pytest.raises(ConfigError, match="a student's data are os:kill, which this teacher was"):
        teach._data(given, {"name": "os:kill"})
    assert callable(teach._data(given, {"name": "digits", "batch_size": 8}))
    own = parser().parse_args([str(teacher), "--registry", "tcp://x:1", "--data", "os:kill"])
    assert callable(teach._data(own, {"name": "digits"}))


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser()
    teach.add_arguments(made)
    return made
