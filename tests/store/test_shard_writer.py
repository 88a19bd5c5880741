"""Shards that are written while their tensors come: what is read is what came, wherever it lies."""

from __future__ import annotations

import errno
import json
import mmap
import os
import struct
from collections import defaultdict
from pathlib import Path

import pytest
import safetensors
from hypothesis import given
from hypothesis import strategies as st
from isal.isal_zlib import crc32

from naspipe.config.errors import LogError
from naspipe.store.files import PAGE_BYTES, cannot_write
from naspipe.store.shards import ITEM_BYTES, Header, Listing, RawTensor, ShardWriter, read_shard

ONE_OF_EACH = ("I64", "F32", "BF16", "U8")
TOO_LITTLE, ENOUGH = 1, 10_000


class Coming:
    """Layers of one tensor each, and what a writer is told of them."""

    def __init__(self, tensors: list[tuple[str, int]]) -> None:
        self.header, self.bytes = Header(), defaultdict(bytes)
        self.expected = {}
        for number, (dtype, items) in enumerate(tensors):
            data = bytes((number + place) % 251 for place in range(items * ITEM_BYTES[dtype]))
            listing = Listing(dtype, (("w", (items,)),))
            self.header.add(f"0/{number}.0/", listing, crc32(data))
            self.bytes[listing.item_bytes] += data
            self.expected[f"0/{number}.0/w"] = RawTensor(dtype, (items,), data)

    def write(self, path: Path, streamed: int, room: int, pages: int = 1) -> dict:
        """Those with items of one size as far as they fill blocks of so many pages."""
        writer, block = ShardWriter(path), mmap.mmap(-1, pages * PAGE_BYTES)
        rest = {size: [memoryview(data)] for size, data in self.bytes.items()}
        (data,) = rest.get(streamed, [memoryview(b"")])
        is_streamed = len(data) >= len(block)
        while len(data) >= len(block):
            block[:] = data[: len(block)]
            writer.append(memoryview(block), room)
            data = data[len(block) :]
        if is_streamed:
            rest[streamed] = [data]
        return writer.finish(self.header, streamed if is_streamed else 0, rest)


@given(
    tensors=st.lists(st.tuples(st.sampled_from(ONE_OF_EACH), st.integers(0, 3000)), max_size=12),
    streamed=st.sampled_from([1, 2, 4, 8]),
    room=st.sampled_from([TOO_LITTLE, ENOUGH, 5 * PAGE_BYTES]),
    pages=st.integers(1, 2),
)
def test_what_came_is_read_and_aligned(tmp_path_factory, tensors, streamed, room, pages):
    path = tmp_path_factory.mktemp("shard") / "checkpoint" / "s.safetensors"
    coming = Coming(tensors)
    entry = coming.write(path, streamed, room, pages)
    assert read_shard(path.parent, entry) == coming.expected
    found = dict(safetensors.deserialize(path.read_bytes()))
    assert {name: bytes(each["data"]) for name, each in found.items()} == {
        name: raw.data for name, raw in coming.expected.items()
    }
    (length,) = struct.unpack("<Q", path.read_bytes()[:8])
    for each in json.loads(path.read_bytes()[8 : 8 + length]).values():
        assert (8 + length + each["data_offsets"][0]) % ITEM_BYTES[each["dtype"]] == 0
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(("room", "pages"), [(TOO_LITTLE, 2), (ENOUGH, 3)])
def test_a_header_that_does_not_fit_moves_what_is_behind_it(tmp_path, room, pages):
    coming = Coming([("F32", 1024)] * 80)
    entry = coming.write(tmp_path / "s.safetensors", 4, room)
    assert read_shard(tmp_path, entry) == coming.expected
    begin = entry["bytes"] - sum(len(data) for data in coming.bytes.values())
    assert begin == pages * PAGE_BYTES


def failing(how):
    def act(*arguments):
        raise OSError(how, os.strerror(how))

    return act


def test_a_disk_that_is_full_leaves_nothing_and_says_what_was_needed(tmp_path, monkeypatch):
    writer, block = ShardWriter(tmp_path / "s.safetensors"), mmap.mmap(-1, PAGE_BYTES)
    writer.append(memoryview(block), ENOUGH)
    assert [path.suffix for path in tmp_path.iterdir()] == [".tmp"]
    header = Header()
    header.add("0/0.0/", Listing("U8", (("w", (PAGE_BYTES + 3,)),)), 0)
    monkeypatch.setattr(os, "pwrite", failing(errno.ENOSPC))
    with pytest.raises(OSError, match="No space left") as caught:
        writer.finish(header, 1, {1: [memoryview(b"abc")]})
    assert list(tmp_path.iterdir()) == []
    said = str(cannot_write(Path(caught.value.filename), caught.value))
    assert "s.safetensors cannot be written (4," in said and "bytes free there" in said


def test_a_block_that_cannot_be_written_leaves_nothing(tmp_path, monkeypatch):
    writer, block = ShardWriter(tmp_path / "s.safetensors"), mmap.mmap(-1, PAGE_BYTES)
    writer.append(memoryview(block), ENOUGH)
    monkeypatch.setattr(os, "pwrite", failing(errno.EIO))
    with pytest.raises(OSError, match="Input/output error"):
        writer.append(memoryview(block), ENOUGH)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_left_of_what_nobody_wants(tmp_path):
    writer = ShardWriter(tmp_path / "made later" / "s.safetensors")
    writer.abort()
    assert list(tmp_path.iterdir()) == []
    writer.append(memoryview(mmap.mmap(-1, PAGE_BYTES)), ENOUGH)
    writer.abort()
    writer.abort()
    assert list((tmp_path / "made later").iterdir()) == []


def test_bytes_that_are_missing_are_refused(tmp_path):
    writer, header = ShardWriter(tmp_path / "s.safetensors"), Header()
    writer.append(memoryview(mmap.mmap(-1, PAGE_BYTES)), ENOUGH)
    header.add("0/0.0/", Listing("U8", (("w", (PAGE_BYTES + 3,)),)), 0)
    with pytest.raises(LogError, match="items of 1 bytes have 4099 bytes, found 4096"):
        writer.finish(header, 1, {})
