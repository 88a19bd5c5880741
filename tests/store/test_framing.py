"""Framed files: what is read back is what was written, or a prefix of it, or an error."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from naspipe.config.errors import LogError
from naspipe.store.frames import MAX_PAYLOAD_BYTES, FramedWriter, encode_frame, read_frames

MAGIC = b"TESTFILE"
HEADER = MAGIC + b"\x01\x00\x00\x00"
payload_lists = st.lists(st.binary(max_size=40), max_size=8)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("framing") / "file"


def read(path: Path) -> list[bytes]:
    return list(read_frames(path, MAGIC, 1))


def encoded(payloads: list[bytes]) -> bytes:
    return HEADER + b"".join(map(encode_frame, payloads))


@given(payloads=payload_lists)
def test_reads_what_was_written(path: Path, payloads: list[bytes]) -> None:
    path.unlink(missing_ok=True)
    with FramedWriter(path, MAGIC, 1) as writer:
        for payload in payloads:
            writer.append(payload)
    assert path.read_bytes() == encoded(payloads)
    assert read(path) == payloads


@given(payloads=payload_lists, data=st.data())
def test_a_cut_file_loses_only_the_torn_record(
    path: Path, payloads: list[bytes], data: st.DataObject
) -> None:
    whole = encoded(payloads)
    cut = data.draw(st.integers(0, len(whole)))
    path.write_bytes(whole[:cut])
    ends = [len(encoded(payloads[:count])) for count in range(len(payloads) + 1)]
    expected = payloads[: sum(end <= cut for end in ends[1:])]
    assert read(path) == expected
    with FramedWriter(path, MAGIC, 1) as writer:
        writer.append(b"after")
    assert path.read_bytes() == encoded([*expected, b"after"])


def test_every_cut_of_the_last_records(path: Path) -> None:
    payloads = [b"first", b"", b"last one"]
    whole = encoded(payloads)
    for cut in range(len(encoded(payloads[:1])), len(whole)):
        path.write_bytes(whole[:cut])
        assert read(path) in (payloads[:1], payloads[:2])
    path.write_bytes(whole)
    assert read(path) == payloads


@given(payloads=st.lists(st.binary(max_size=40), min_size=1, max_size=6), data=st.data())
def test_a_flipped_bit_is_an_error_or_a_dropped_tail(
    path: Path, payloads: list[bytes], data: st.DataObject
) -> None:
    whole = bytearray(encoded(payloads))
    bit = data.draw(st.integers(0, len(whole) * 8 - 1))
    whole[bit // 8] ^= 1 << bit % 8
    path.write_bytes(whole)
    is_in_last = bit // 8 >= len(encoded(payloads[:-1]))
    if is_in_last:
        assert read(path) == payloads[:-1]
    else:
        with pytest.raises(LogError, match=str(path)):
            read(path)
        with pytest.raises(LogError, match=str(path)):
            FramedWriter(path, MAGIC, 1)
        assert path.read_bytes() == bytes(whole)


def test_damage_names_file_and_offset(path: Path) -> None:
    whole = bytearray(encoded([b"first", b"second", b"third"]))
    offset = len(encoded([b"first"]))
    whole[offset + 10] ^= 1
    path.write_bytes(whole)
    with pytest.raises(LogError, match=rf"{path}, offset {offset}: .*CRC32"):
        read(path)


def test_zeros_are_never_records(path: Path) -> None:
    path.write_bytes(encoded([b"first"]) + bytes(4096))
    assert read(path) == [b"first"]


def test_a_long_unreadable_tail_is_damage(path: Path) -> None:
    path.write_bytes(encoded([b"first"]) + bytes(MAX_PAYLOAD_BYTES + 9))
    with pytest.raises(LogError, match="unreadable"):
        read(path)


def test_a_huge_length_is_no_record(path: Path) -> None:
    path.write_bytes(encoded([b"first"]) + struct.pack("<II", 0xFFFFFFFF, 0) + b"x" * 100)
    assert read(path) == [b"first"]


def test_a_payload_beyond_the_bound_is_refused() -> None:
    assert len(encode_frame(bytes(MAX_PAYLOAD_BYTES))) == MAX_PAYLOAD_BYTES + 8
    with pytest.raises(LogError, match="too long"):
        encode_frame(bytes(MAX_PAYLOAD_BYTES + 1))


def test_another_kind_of_file_or_version_is_refused(path: Path) -> None:
    path.write_bytes(b"hello, this is no log")
    with pytest.raises(LogError, match="expected the header"):
        read(path)
    path.write_bytes(encoded([b"first"]))
    with pytest.raises(LogError, match="schema version 2"):
        list(read_frames(path, MAGIC, 2))


def test_records_wait_for_flush(path: Path) -> None:
    path.unlink(missing_ok=True)
    with FramedWriter(path, MAGIC, 1) as writer:
        writer.append(b"first")
        assert read(path) == []
        writer.flush()
        assert read(path) == [b"first"]
