"""Run directories: made with care, read with care; losses in order with their bits."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from naspipe.config.errors import ConfigError, LogError
from naspipe.config.ids import SequenceId, StreamId
from naspipe.store.differences import loss_differences
from naspipe.store.labels import SpaceLabels
from naspipe.store.losses import NOTHING, Loss, LossWriter, read_beside, read_losses
from naspipe.store.run_directory import RunDirectory


def bits(value: float) -> str:
    return struct.pack(">d", value).hex()


def test_create_makes_the_folders(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "deep" / "run")
    run.create()
    assert run.access_log(3).parent.is_dir()
    assert run.events_log(3).parent.is_dir()
    assert run.checkpoint().parent.is_dir()
    assert run.access_log(3).name == "stage-3.msgpack"
    assert run.checkpoint() == tmp_path / "deep" / "run" / "checkpoints" / "final"


def test_an_empty_directory_may_be_used(tmp_path: Path) -> None:
    RunDirectory(tmp_path).create()


def test_a_directory_in_use_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(ConfigError, match=rf"{tmp_path} exists and is not empty; .*--run-dir"):
        RunDirectory(tmp_path).create()
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_file_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("x")
    with pytest.raises(ConfigError, match="found a file"):
        RunDirectory(tmp_path / "run").create()
    with pytest.raises(ConfigError, match="cannot be made"):
        RunDirectory(tmp_path / "run" / "below").create()


def test_manifest_comes_back_and_is_replaced_whole(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.write_manifest({"format": 1, "status": "running"})
    run.write_manifest({"format": 1, "status": "complete", "measured": {"loss": math.nan}})
    assert run.read_manifest() == {
        "format": 1,
        "status": "complete",
        "measured": {"loss": "nan"},
    }
    with pytest.raises(TypeError):
        run.write_manifest({"format": object()})
    assert run.read_manifest()["status"] == "complete"
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.json"]


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"format": 2}', "{}"])
def test_what_is_no_manifest_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(ConfigError, match="is not a run directory"):
        RunDirectory(tmp_path).read_manifest()


def test_a_missing_manifest_is_no_run_directory(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a run directory"):
        RunDirectory(tmp_path / "nothing").read_manifest()


@given(
    values=st.lists(st.floats(), max_size=10),
    streams=st.integers(1, 3),
    seed=st.randoms(use_true_random=False),
)
def test_losses_come_back_in_order(
    tmp_path_factory: pytest.TempPathFactory, values: list[float], streams: int, seed: object
) -> None:
    path = tmp_path_factory.mktemp("losses") / "losses.jsonl"
    steps = [
        (stream, number, value) for stream in range(streams) for number, value in enumerate(values)
    ]
    shuffled = list(steps)
    seed.shuffle(shuffled)  # type: ignore[attr-defined]
    with LossWriter(path) as writer:
        for stream, number, value in shuffled:
            writer.append(stream, number, value, bits(value))
    found = read_losses(path)
    assert sorted(loss.bits for loss in found) == sorted(bits(value) for *_, value in steps)
    for stream in range(streams):
        mine = [loss for loss in found if loss.stream == stream]
        assert [loss.sequence_id for loss in mine] == list(range(len(values)))
        assert [loss.bits for loss in mine] == [bits(value) for value in values]
        assert [repr(loss.value) for loss in mine] == [repr(value) for value in values]

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    for line in path.read_text().splitlines():
        json.loads(line, parse_constant=refuse)


def test_a_gap_holds_back_what_follows(tmp_path: Path) -> None:
    path = tmp_path / "losses.jsonl"
    with LossWriter(path) as writer:
        writer.append(0, 0, 1.0, bits(1.0))
        writer.append(0, 2, 3.0, bits(3.0))
        assert len(read_losses(path)) == 1
        writer.append(0, 1, 2.0, bits(2.0))
        assert len(read_losses(path)) == 3
        writer.append(0, 4, 5.0, bits(5.0))
        with pytest.raises(LogError, match=r"0\.4 was recorded twice"):
            writer.append(0, 4, 5.0, bits(5.0))
        with pytest.raises(LogError, match=r"0\.1 was recorded twice"):
            writer.append(0, 1, 5.0, bits(5.0))
    assert [loss.value for loss in read_losses(path)] == [1.0, 2.0, 3.0]


def test_a_resume_keeps_the_steps_before_it(tmp_path: Path) -> None:
    path = tmp_path / "losses.jsonl"
    with LossWriter(path) as writer:
        for number in range(5):
            writer.append(0, number, float(number), bits(number))
    with LossWriter(path, first=3) as writer:
        writer.append(0, 3, 30.0, bits(30.0))
    assert [loss.value for loss in read_losses(path)] == [0.0, 1.0, 2.0, 30.0]


def test_what_stands_beside_a_loss_keeps_its_bits_and_bytes(tmp_path: Path) -> None:
    path = tmp_path / "losses.jsonl"
    beside = read_beside("12ab", {"accuracy": [0.1, "3dcccccd"], "odd": ["nan", "7fc00001"]})
    with LossWriter(path) as writer:
        writer.append(0, 0, 1.0, bits(1.0), beside)
        writer.append(0, 1, 1.0, bits(1.0))
        written = writer.sync(2)
    before = path.read_bytes()
    with LossWriter(path, first=2) as writer:
        assert writer.sync(2) == written and path.read_bytes() == before
        writer._marks.clear()  # of a checkpoint that took very long, its losses are read again
        assert writer.sync(2) == written
    first, second = read_losses(path)
    assert first.beside.batch == "12ab" and dict(first.beside.metrics)["odd"].bits == "7fc00001"
    assert second.beside == NOTHING and b"batch" not in before.splitlines()[1]
    for wrong in ({"a": 1}, {"a": [1.0, "xyz"]}, [1], {"a": [1.0]}):
        with pytest.raises((TypeError, ValueError)):
            read_beside("", wrong)


def test_metrics_that_differ_are_told(tmp_path: Path) -> None:
    one, other = (
        Loss(StreamId(0), SequenceId(3), 1.0, "00", read_beside("", {"accuracy": [v, raw]}))
        for v, raw in ((0.5, "3f000000"), (0.25, "3e800000"))
    )
    lists = {"labels": [], "shared": [], "rules": [], "candidates": []}
    labels = SpaceLabels({"name": "none", **lists})
    (found,) = loss_differences([one], [other], labels)
    assert str(found) == "step 3: metric: accuracy 0.5 against 0.25"
    assert not [*loss_differences([one], [one], labels)]
    assert not [*loss_differences([one], [one._replace(beside=NOTHING)], labels)]


def test_a_torn_last_line_is_dropped_and_damage_is_named(tmp_path: Path) -> None:
    path = tmp_path / "losses.jsonl"
    with LossWriter(path) as writer:
        for number in range(3):
            writer.append(0, number, 1.5, bits(1.5))
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    assert len(read_losses(path)) == 2
    path.write_bytes(whole.replace(b'"sequence_id": 1', b'"sequence_id": 7'))
    with pytest.raises(LogError, match=r"losses.jsonl:2: expected the loss of the next step"):
        read_losses(path)
    path.write_bytes(b"{}\n" + whole)
    with pytest.raises(LogError, match=r"losses.jsonl:1"):
        read_losses(path)
    with pytest.raises(LogError, match="No such file"):
        read_losses(tmp_path / "nothing")


def test_a_place_below_a_file_is_refused_before_anything_is_made(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match="below/run cannot be made: Not a directory; choose"):
        RunDirectory(tmp_path / "file" / "below" / "run").check_new()
    RunDirectory(tmp_path / "new" / "run").check_new()
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
