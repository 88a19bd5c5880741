"""Data sets become visible whole or not at all, and damage is found and named."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from naspipe.config.errors import DataError
from naspipe.data.cache import Description, default_root, open_prepared, publish


def description(recipe: int = 1) -> Description:
    return Description(
        source="a test", version="1", licence="MIT", recipe=recipe, counts={"lines": 1}
    )


def build(directory: Path) -> Description:
    (directory / "a.txt").write_text("hello")
    return description()


def test_record_says_where_it_came_from(tmp_path: Path) -> None:
    assert publish(tmp_path, "x", build) == tmp_path / "x"
    directory, record = open_prepared(tmp_path, "x", 1)
    assert directory == tmp_path / "x"
    assert (record["source"], record["version"], record["licence"]) == ("a test", "1", "MIT")
    assert record["files"]["a.txt"]["bytes"] == 5
    assert record["files"]["a.txt"]["sha256"].startswith("2cf24dba5fb0a30e")


def test_second_time_builds_nothing(tmp_path: Path) -> None:
    publish(tmp_path, "x", build)
    publish(tmp_path, "x", lambda directory: pytest.fail("built again"))


def test_step_that_dies_leaves_nothing(tmp_path: Path) -> None:
    def dies(directory: Path) -> Description:
        (directory / "a.txt").write_text("half")
        assert not (tmp_path / "x").exists()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        publish(tmp_path, "x", dies)
    assert list(tmp_path.iterdir()) == []


def test_failed_force_keeps_what_was_there(tmp_path: Path) -> None:
    publish(tmp_path, "x", build)

    def dies(directory: Path) -> Description:
        raise DataError("no network")

    with pytest.raises(DataError, match="no network"):
        publish(tmp_path, "x", dies, force=True)
    open_prepared(tmp_path, "x", 1)


def test_killed_process_is_swept_up_but_not_a_living_one(tmp_path: Path) -> None:
    dead = tmp_path / ".x.partial-dead"
    dead.mkdir(parents=True)
    os.utime(dead, (0, 0))

    def meanwhile(directory: Path) -> Description:
        os.utime(directory, (0, 0))
        publish(tmp_path, "x", build)
        assert directory.exists()
        return build(directory)

    publish(tmp_path, "x", meanwhile)
    assert not dead.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


@pytest.mark.parametrize("force", [False, True])
def test_many_at_once(tmp_path: Path, force: bool) -> None:
    gate = threading.Barrier(6)

    def together(directory: Path) -> Description:
        gate.wait(30)
        return build(directory)

    errors: list[BaseException] = []

    def start() -> None:
        try:
            publish(tmp_path, "x", together, force=force)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=start) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    open_prepared(tmp_path, "x", 1)
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_not_prepared_says_the_command(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"run 'naspipe data prepare x --data-dir {tmp_path}'"):
        open_prepared(tmp_path, "x", 1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("hell", "expected 5 bytes, found 4"),
        ("jello", "expected SHA-256 2cf24dba5fb0a30e…, found"),
        (None, "cannot be read"),
    ],
)
def test_damage_is_named(tmp_path: Path, content: str | None, message: str) -> None:
    publish(tmp_path, "x", build)
    path = tmp_path / "x" / "a.txt"
    if content is None:
        path.unlink()
    else:
        path.write_text(content)
    with pytest.raises(DataError, match=message) as caught:
        open_prepared(tmp_path, "x", 1)
    assert str(path) in str(caught.value)
    assert "--force'" in str(caught.value)
    publish(tmp_path, "x", build, force=True)
    open_prepared(tmp_path, "x", 1)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 2}', "\x00", "{"])
def test_damaged_record(tmp_path: Path, text: str) -> None:
    publish(tmp_path, "x", build)
    (tmp_path / "x" / "record.json").write_text(text)
    with pytest.raises(DataError, match=r"record\.json: .*--force"):
        open_prepared(tmp_path, "x", 1)


def test_record_cannot_lead_outside(tmp_path: Path) -> None:
    publish(tmp_path, "x", build)
    path = tmp_path / "x" / "record.json"
    record = json.loads(path.read_text())
    record["files"]["../../secret"] = record["files"].pop("a.txt")
    path.write_text(json.dumps(record))
    with pytest.raises(DataError, match="not a data set's record"):
        open_prepared(tmp_path, "x", 1)


def test_other_recipe_is_refused(tmp_path: Path) -> None:
    publish(tmp_path, "x", build)
    with pytest.raises(DataError, match="prepared by recipe 1, this naspipe expects recipe 2"):
        open_prepared(tmp_path, "x", 2)


def test_root_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"cannot be written .* --data-dir"):
        publish(tmp_path / "file", "x", build)


def test_default_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_root() == tmp_path / "naspipe" / "data"
    monkeypatch.setenv("HOME", str(tmp_path))
    for ignored in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", ignored)
        assert default_root() == tmp_path / ".cache" / "naspipe" / "data"
