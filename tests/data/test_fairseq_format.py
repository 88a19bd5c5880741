"""Both formats, byte by byte and against damaged files."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from naspipe.config.errors import DataError
from naspipe.data.fairseq import (
    build_dictionary,
    open_tokens,
    read_dictionary,
    write_dictionary,
    write_mmap,
)

SENTENCES = [[4, 5, 6, 2], [7, 2], [2], [8, 9, 2]]
quick = settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])


def write_lazy(prefix: Path, sentences: list[list[int]]) -> None:
    """Write the older format, as the facts about fairseq describe it."""
    sizes = [len(sentence) for sentence in sentences]
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype("<i8")
    index = b"TNTIDX\0\0" + struct.pack("<QQQQQ", 1, 4, 4, len(sizes), len(sizes))
    index += np.arange(len(sizes) + 1, dtype="<i8").tobytes() + offsets.tobytes()
    index += np.array(sizes, "<i8").tobytes()
    Path(f"{prefix}.idx").write_bytes(index)
    flat = [token + 1 for sentence in sentences for token in sentence]
    Path(f"{prefix}.bin").write_bytes(np.array(flat, "<i4").tobytes())


WRITERS = {"mmap": lambda prefix, rows: write_mmap(prefix, rows, 100), "lazy": write_lazy}


def read_all(prefix: Path) -> list[list[int]]:
    tokens = open_tokens(prefix)
    return [tokens[index].tolist() for index in range(len(tokens))]


def test_mmap_bytes_are_fairseqs(tmp_path: Path) -> None:
    write_mmap(tmp_path / "a", [[4, 2], [5, 6, 2]], 100)
    assert (tmp_path / "a.bin").read_bytes() == struct.pack("<5H", 4, 2, 5, 6, 2)
    expected = b"MMIDIDX\0\0" + struct.pack("<QBQ", 1, 8, 2)
    expected += struct.pack("<2i", 2, 3) + struct.pack("<2q", 0, 4)
    assert (tmp_path / "a.idx").read_bytes() == expected


def test_large_vocabulary_takes_four_bytes(tmp_path: Path) -> None:
    write_mmap(tmp_path / "a", [[70_000, 2]], 80_000)
    assert (tmp_path / "a.bin").stat().st_size == 8
    assert read_all(tmp_path / "a") == [[70_000, 2]]


def test_writer_refuses_tokens_outside_the_vocabulary(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="0 to 9"):
        write_mmap(tmp_path / "a", [[10]], 10)


@pytest.mark.parametrize("writer", WRITERS)
def test_no_sentences(tmp_path: Path, writer: str) -> None:
    WRITERS[writer](tmp_path / "a", [])
    tokens = open_tokens(tmp_path / "a")
    assert len(tokens) == 0
    tokens.check(10, 2)


@pytest.mark.parametrize("writer", WRITERS)
@quick
@given(rows=st.lists(st.lists(st.integers(0, 99), max_size=9), max_size=9))
def test_round_trip(tmp_path: Path, writer: str, rows: list[list[int]]) -> None:
    WRITERS[writer](tmp_path / "a", rows)
    assert read_all(tmp_path / "a") == rows


@pytest.mark.parametrize("ending", ["bin", "idx"])
@pytest.mark.parametrize("writer", WRITERS)
def test_every_truncation_is_a_data_error(tmp_path: Path, writer: str, ending: str) -> None:
    WRITERS[writer](tmp_path / "a", SENTENCES)
    path = tmp_path / f"a.{ending}"
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(DataError, match="a\\."):
            open_tokens(tmp_path / "a")


@pytest.mark.parametrize("writer", WRITERS)
@quick
@given(data=st.data())
def test_flipped_bits_never_crash(tmp_path: Path, writer: str, data: st.DataObject) -> None:
    """A changed index is refused, or gives sentences inside the file; nothing else happens."""
    WRITERS[writer](tmp_path / "a", SENTENCES)
    path = tmp_path / "a.idx"
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(content) * 8 - 1))
        content[place // 8] ^= 1 << place % 8
    path.write_bytes(content)
    try:
        rows = read_all(tmp_path / "a")
        open_tokens(tmp_path / "a").check(100, 2)
    except DataError as error:
        assert str(path.with_suffix("")) in str(error)
    else:
        assert sum(map(len, rows)) <= 4 * 10


def test_giant_counts_are_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"")
    for count in (1 << 40, (1 << 64) - 1):
        (tmp_path / "a.idx").write_bytes(b"MMIDIDX\0\0" + struct.pack("<QBQ", 1, 8, count))
        with pytest.raises(DataError, match=f"for {count} sentences, found 26"):
            open_tokens(tmp_path / "a")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "found b''"),
        (b"\x80\x04 pickle", "expected an index of fairseq's"),
        (b"MMIDIDX\0\0" + struct.pack("<QBQ", 2, 8, 0), "expected version 1"),
        (b"MMIDIDX\0\0" + struct.pack("<QBQ", 1, 7, 0), "found 7"),
        (b"TNTIDX\0\0" + struct.pack("<QQQQQ", 1, 4, 8, 0, 0), "element size 8"),
        (b"TNTIDX\0\0" + struct.pack("<QQQQQ", 1, 4, 4, 1, 2), "1 items with 2 dimensions"),
    ],
)
def test_foreign_index(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "a.bin").write_bytes(b"")
    (tmp_path / "a.idx").write_bytes(content)
    with pytest.raises(DataError, match=message):
        open_tokens(tmp_path / "a")


@pytest.mark.parametrize("ending", ["bin", "idx"])
def test_missing_file_is_named(tmp_path: Path, ending: str) -> None:
    write_mmap(tmp_path / "a", SENTENCES, 100)
    (tmp_path / f"a.{ending}").unlink()
    with pytest.raises(DataError, match=rf"a\.{ending}: cannot be read"):
        open_tokens(tmp_path / "a")


def test_check_finds_foreign_tokens_and_missing_ends(tmp_path: Path) -> None:
    for writer in WRITERS.values():
        writer(tmp_path / "a", SENTENCES)
        tokens = open_tokens(tmp_path / "a")
        tokens.check(10, 2)
        with pytest.raises(DataError, match="tokens 0 to 8 of the dictionary, found 9"):
            tokens.check(9, 2)
        writer(tmp_path / "b", [[4, 2], [5], [2]])
        with pytest.raises(DataError, match="sentence 1 does not end"):
            open_tokens(tmp_path / "b").check(10, 2)
        writer(tmp_path / "c", [[4, 2], [], [5]])
        with pytest.raises(DataError, match="sentence 1 does not end"):
            open_tokens(tmp_path / "c").check(10, 2)


def test_dictionary_round_trip_and_padding(tmp_path: Path) -> None:
    entries = build_dictionary({"b": 3, "a": 3, "c d": 9})
    assert entries == [("c d", 9), ("a", 3), ("b", 3), ("madeupword0000", 0)]
    write_dictionary(tmp_path / "dict.txt", entries)
    assert read_dictionary(tmp_path / "dict.txt") == [
        *("<s>", "<pad>", "</s>", "<unk>"),
        *("c d", "a", "b", "madeupword0000"),
    ]


def test_dictionary_may_overwrite_as_fairseq_does(tmp_path: Path) -> None:
    path = tmp_path / "dict.txt"
    path.write_text("a 3\n<unk> 1 #fairseq:overwrite\n", "utf-8")
    assert read_dictionary(path)[4:] == ["a", "<unk>"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a 1\nb\n", ":2: expected 'symbol count'"),
        (b"a x\n", ":1: expected"),
        (b"a 1\n\n", ":2: expected"),
        (b"a 1\na 2\n", ":2: symbol 'a' stands in the file twice"),
        (b"<pad> 1\n", "twice"),
        (b"\xff 1\n", "expected UTF-8"),
    ],
)
def test_damaged_dictionary(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "dict.txt").write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_dictionary(tmp_path / "dict.txt")
