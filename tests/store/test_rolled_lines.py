"""Lines of which the older ones are tables: nothing is lost or doubled, whenever a run ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from naspipe.cli.main import main
from naspipe.config.errors import LogError
from naspipe.store import losses as rolled_lines
from naspipe.store.losses import (
    LossWriter,
    MetricsFile,
    RolledLines,
    check_losses,
    line_of,
    read_losses,
    read_metrics,
    read_rows,
    tables_of,
)
from naspipe.store.tables import decode_table, encode_table
from tests.store.fake_run import FakeRun, float32_bits

values = st.one_of(
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.floats(allow_nan=False, allow_infinity=False, width=32),
    st.text(max_size=8),
    st.text("0123456789abcdef", min_size=8, max_size=8),
    st.none(),
    st.booleans(),
    st.lists(st.integers(0, 9), max_size=3),
)
tables = st.lists(st.dictionaries(st.text(max_size=3), values, max_size=5), max_size=12)
alike = st.lists(
    st.fixed_dictionaries(
        {
            "step": st.integers(0, 1 << 40),
            "loss": st.floats(allow_nan=False, allow_infinity=False, width=32),
        }
        | {"seconds": st.floats(allow_nan=False, allow_infinity=False)}
        | {"bits": st.integers(0, (1 << 64) - 1).map(lambda number: f"{number:016x}")}
    ),
    max_size=12,
)


@given(rows=st.one_of(tables, alike))
def test_a_table_comes_back_equal_in_every_bit(rows: list[dict[str, object]]) -> None:
    found = decode_table(encode_table(rows))
    assert list(map(line_of, found)) == list(map(line_of, rows))
    assert [list(map(type, row.values())) for row in found] == [
        list(map(type, row.values())) for row in rows
    ]


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rolled_lines, "ROLLED", 4)


def written(path: Path, numbers: range) -> RolledLines:
    lines = RolledLines(path)
    for number in numbers:
        lines.append({"step": number, "odd": number % 3 / 7})
    lines.close()
    return lines


def steps(path: Path) -> list[int]:
    return [row["step"] for _, row in read_rows(path)]


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 30])
def test_every_row_is_there_once_and_the_newest_are_lines(tmp_path: Path, count: int) -> None:
    path = tmp_path / "x.jsonl"
    written(path, range(count))
    assert steps(path) == list(range(count))
    lines = [json.loads(line)["step"] for line in path.read_text().splitlines()]
    assert lines == list(range(count))[-len(lines) :] if lines else not count
    assert len(lines) < 8 and tables_of(path).exists() == (count >= 8)


def test_a_death_between_a_table_and_its_lines_doubles_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    written(path, range(7))
    lines = path.read_bytes() + line_of({"step": 7, "odd": 7 % 3 / 7})
    written(path, range(8))
    path.write_bytes(lines)  # the table is there, and the lines were not replaced
    assert steps(path) == list(range(8))
    again = RolledLines(path, lambda row: row["step"] < 6)
    again.append({"step": 6, "odd": 0.0})
    again.close()
    assert steps(path) == list(range(7))


def test_a_torn_table_is_still_in_the_lines(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    written(path, range(15))
    lines = path.read_bytes() + line_of({"step": 15, "odd": 0.0})
    written(path, range(16))
    data = tables_of(path).read_bytes()
    tables_of(path).write_bytes(data[:-3])
    path.write_bytes(lines)
    assert steps(path) == list(range(16))


@pytest.mark.parametrize("first", [0, 3, 4, 13, 17, 20])
def test_a_later_life_goes_on_at_any_row(tmp_path: Path, first: int) -> None:
    path = tmp_path / "metrics.jsonl"
    made = MetricsFile(path, 0)
    for number in range(17):
        made.write(number, {"loss": number / 3})
    made.close()
    again = MetricsFile(path, first)
    again.write(99, {"loss": None})
    again.close()
    assert [row["step"] for row in read_metrics(path)] == [*range(min(first, 17)), 99]


def test_losses_keep_the_digest_that_a_checkpoint_has(tmp_path: Path) -> None:
    """It is of all their lines, wherever they stand now."""
    path, plain = tmp_path / "losses.jsonl", tmp_path / "plain.jsonl"
    with LossWriter(path) as writer:
        for number in range(30):
            writer.append(0, number, number / 7, f"{number:08x}")
        mark = writer.sync(21)
    plain.write_bytes(b"".join(line_of(row) for _, row in read_rows(path)))
    assert read_losses(plain) == read_losses(path) and not tables_of(plain).exists()
    for each in (path, plain):
        check_losses(each, mark)
    with LossWriter(path, first=21) as writer:
        assert writer.sync(21) == mark
        with pytest.raises(LogError, match="expected the losses of 22 subnets, found 21"):
            writer.sync(22)
    assert len(read_losses(path)) == 21
    with pytest.raises(LogError, match="expected 30 losses, found 21"):
        LossWriter(path, first=30)


def test_a_damaged_table_is_named(tmp_path: Path) -> None:
    path = tmp_path / "losses.jsonl"
    with LossWriter(path) as writer:
        for number in range(30):
            writer.append(0, number, number / 7, f"{number:08x}")
    data = bytearray(tables_of(path).read_bytes())
    data[60] ^= 1
    tables_of(path).write_bytes(data)
    with pytest.raises(LogError, match=r"losses\.msgpack, offset 12: expected a record with a"):
        read_losses(path)


def test_rows_too_long_for_one_table_become_several(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    lines = RolledLines(path)
    texts = [str(hash(str(number))) * 20_000 for number in range(8)]
    for number, text in enumerate(texts):
        lines.append({"step": number, "text": text + chr(65 + number)})
    lines.close()
    assert [row["text"][:-1] for _, row in read_rows(path)] == texts


def test_the_command_prints_all_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = FakeRun(losses=[(y / 4, float32_bits(y / 4)) for y in range(20)]).write(tmp_path / "run")
    assert main(["log", str(run), "--rows", "losses"]) == 0
    found = [json.loads(line)["sequence_id"] for line in capsys.readouterr().out.splitlines()]
    assert found == list(range(20)) and len((run / "losses.jsonl").read_text().splitlines()) < 8
    assert main(["log", str(run), "--rows", "metrics"]) == 2
    assert "metrics.jsonl: expected rows of a run" in capsys.readouterr().err
