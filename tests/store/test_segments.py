"""Segments of the access log: any part can be read, damage is named, and torn ends are dropped."""

from __future__ import annotations

import random
from pathlib import Path
from zlib import crc32

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from naspipe.config.errors import LogError
from naspipe.config.ids import Access, AccessKind
from naspipe.store import access_log as log_module
from naspipe.store import frames as framing
from naspipe.store import frames as headed_frames
from naspipe.store.access_columns import from_accesses, joined
from naspipe.store.access_log import AccessLogWriter, RunLog, read_access_log, time_key
from naspipe.store.access_segments import (
    Wanted,
    decode_body,
    decode_head,
    iterate_heads,
    read_columns,
    segment_parts,
)
from naspipe.store.tables import pack_numbers, unpack_numbers
from tests.store.fake_run import CHAINS, access, sequential_accesses
from tests.store.test_access_log import accesses

whole = st.integers(-(1 << 63), (1 << 63) - 1)


@given(numbers=st.lists(st.one_of(whole, st.integers(-3, 300)), max_size=40))
def test_numbers_come_back_equal(numbers: list[int]) -> None:
    column = np.array(numbers, np.int64)
    packed = msgpack.unpackb(msgpack.packb(pack_numbers(column)))
    assert unpack_numbers(packed, len(numbers)).tolist() == numbers
    if type(packed) is list:
        for wrong in (len(numbers) + 1, len(numbers) - 1):
            with pytest.raises(ValueError, match="deflated"):
                unpack_numbers(packed, wrong)


@given(records=st.lists(accesses, min_size=1, max_size=20), generation=st.integers(0, 9))
def test_a_segment_comes_back_equal(records: list[Access], generation: int) -> None:
    head, body = segment_parts(records, generation)
    found = decode_head(head)
    assert found.records == len(records) and found.generation == generation
    assert found.start_ns == min(each.start_ns for each in records)
    assert {tuple(row[:3]) for row in found.layers.tolist()} == {each.layer for each in records}
    columns = decode_body(body, found)
    assert list(columns.accesses()) == records
    assert list(columns.by_time().accesses()) == sorted(records, key=time_key)
    layers = columns.by_layer()
    assert sum(map(len, layers.values())) == len(records)
    for layer, rows in layers.items():
        assert list(rows.accesses()) == [each for each in records if each.layer == layer]
    assert list(joined([columns, from_accesses(records)]).accesses()) == records * 2


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A log of many short segments."""
    monkeypatch.setattr(log_module, "_BUFFERED", 7)
    (tmp_path / "access").mkdir()
    chains = [random.Random(n).choice(CHAINS) for n in range(12)]
    with AccessLogWriter(tmp_path / "access" / "stage-0.msgpack") as log:
        for record in sequential_accesses(chains, digests=True):
            log.append(record)
    return tmp_path


def test_any_part_can_be_read(run: Path) -> None:
    log = RunLog(run)
    records = list(log.columns().accesses())
    assert log.layers == {
        layer: sum(each.layer == layer for each in records)
        for layer in sorted({r.layer for r in records})
    }
    layer = records[-1].layer
    for wanted in (
        Wanted(), Wanted(layers=frozenset([layer])), Wanted(first=3, end=7), Wanted(end=0),
        Wanted(layers=frozenset([layer]), first=5, backwards=False), Wanted(every=4, passes=2),
        Wanted(layers=frozenset()),
    ):  # fmt: skip
        expected = [
            each
            for each in records
            if (wanted.layers is None or each.layer in wanted.layers)
            and wanted.first <= each.sequence_id
            and (wanted.end is None or each.sequence_id < wanted.end)
            and each.sequence_id // wanted.passes % wanted.every == 0
            and (wanted.backwards or each.kind is not AccessKind.BACKWARD)
        ]
        assert list(log.columns(wanted).accesses()) == expected


def test_bodies_that_nobody_wants_are_not_looked_at(run: Path) -> None:
    path = run / "access" / "stage-0.msgpack"
    heads = list(iterate_heads(path))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1  # of the last segment's body
    path.write_bytes(data)
    last = max(last for _, _, last in heads[-1].subnets)
    assert len(list(iterate_heads(path))) == len(heads)
    assert list(read_columns(path, Wanted(end=heads[-1].subnets[0][1])))
    with pytest.raises(LogError, match=r"stage-0\.msgpack, offset \d+: expected a record with a"):
        list(read_columns(path, Wanted(first=last)))


def test_cut_anywhere_whole_segments_are_left_and_are_continued(run: Path) -> None:
    path = run / "access" / "stage-0.msgpack"
    data, records = path.read_bytes(), read_access_log(path)
    draw = random.Random(1)
    for length in [12, 13, len(data) - 1, *(draw.randrange(12, len(data)) for _ in range(30))]:
        path.write_bytes(data[:length])
        found = read_access_log(path)
        assert found == records[: len(found)] and len(found) % 7 == 0
        with AccessLogWriter(path) as log:
            log.append(records[0])
        assert read_access_log(path) == [*found, records[0]]


def test_a_flipped_bit_is_never_read_as_something_else(run: Path) -> None:
    path = run / "access" / "stage-0.msgpack"
    data, records = path.read_bytes(), read_access_log(path)
    draw = random.Random(2)
    refused = 0
    for _ in range(60):
        place = draw.randrange(12, len(data))
        path.write_bytes(
            data[:place] + bytes([data[place] ^ 1 << draw.randrange(8)]) + data[place + 1 :]
        )
        try:
            found = read_access_log(path)
        except LogError as error:
            refused += 1
            assert str(path) in str(error) and "\n" not in str(error)
            continue
        assert found == records[: len(found)] and len(found) < len(records)
    assert refused > 50  # but for a damaged length of the last one, which is as a torn end


@pytest.mark.parametrize(("module", "wanted"), [(headed_frames, None), (framing, None)])
def test_without_a_checksum_damage_is_not_seen(
    run: Path, monkeypatch: pytest.MonkeyPatch, module: object, wanted: None
) -> None:
    """Each of the two is what refuses: of heads, and of whole records."""
    path = run / "access" / "stage-0.msgpack"
    data = bytearray(path.read_bytes())
    place = 12 + 8 + 8 + 1 if module is headed_frames else len(data) - 1
    data[place] ^= 1
    path.write_bytes(data)
    with pytest.raises(LogError, match="CRC32"):
        read_access_log(path)
    true = crc32
    monkeypatch.setattr(module, "crc32", lambda *found: _Always())
    if module is headed_frames:
        monkeypatch.setattr(headed_frames, "frame_end", lambda frame, offset: len(frame))
    with pytest.raises(LogError) as caught:
        read_access_log(path)
        raise LogError("read")
    assert "CRC32" not in str(caught.value) and true(b"") == 0


class _Always:
    """A checksum that is always right."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


def test_slow_stages_write_as_they_go(tmp_path: Path) -> None:
    """Ten seconds of records are the most that a death costs."""
    path = tmp_path / "log"
    with AccessLogWriter(path) as log:
        for second in range(25):
            log.append(access(0, 0, second, AccessKind.FORWARD, second * 10**9))
        assert len(read_access_log(path)) == 24
