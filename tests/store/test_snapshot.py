"""Checkpoints: exact bytes for every dtype, and nothing damaged is ever read."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

import pytest
import safetensors
from hypothesis import given
from hypothesis import strategies as st

from naspipe.config.errors import ConfigError, LogError
from naspipe.store.checkpoints import read_checkpoint, write_checkpoint_manifest
from naspipe.store.shards import ITEM_BYTES, RawTensor
from tests.store.shards import write_shard


@st.composite
def raw_tensors(draw: st.DrawFn) -> RawTensor:
    dtype = draw(st.sampled_from(sorted(ITEM_BYTES)))
    shape = tuple(draw(st.lists(st.integers(0, 3), max_size=3)))
    size = ITEM_BYTES[dtype] * math.prod(shape)
    return RawTensor(dtype, shape, draw(st.binary(min_size=size, max_size=size)))


names = st.text("abc/._é0", min_size=1, max_size=12)


def save(
    directory: Path,
    *shards: dict[str, RawTensor],
    scalars: dict[str, Any] | None = None,
    versions: dict[str, int] | None = None,
) -> Path:
    entries = [
        write_shard(directory, f"stage-{stage}.safetensors", {"": tensors})
        for stage, tensors in enumerate(shards)
    ]
    write_checkpoint_manifest(
        directory,
        {"subnets": 9, "shards": entries, "versions": versions or {}, "scalars": scalars or {}},
    )
    return directory


@given(tensors=st.dictionaries(names, raw_tensors(), max_size=6))
def test_tensors_come_back_byte_for_byte(
    tmp_path_factory: pytest.TempPathFactory, tensors: dict[str, RawTensor]
) -> None:
    directory = save(tmp_path_factory.mktemp("checkpoint"), tensors)
    assert read_checkpoint(directory).tensors == tensors
    assert sorted(path.name for path in directory.iterdir()) == [
        "manifest.json",
        "stage-0.safetensors",
    ]


def test_the_safetensors_library_reads_our_shards(tmp_path: Path) -> None:
    tensors = {
        "b": RawTensor("BF16", (3,), b"abcdef"),
        "a": RawTensor("F32", (1, 2), b"12345678"),
        "é": RawTensor("BOOL", (1,), b"\x01"),
        "empty": RawTensor("I64", (0, 4), b""),
        "scalar": RawTensor("F64", (), b"12345678"),
    }
    write_shard(tmp_path, "x.safetensors", {"": tensors})
    found = safetensors.deserialize((tmp_path / "x.safetensors").read_bytes())
    assert {
        name: RawTensor(entry["dtype"], tuple(entry["shape"]), bytes(entry["data"]))
        for name, entry in found
    } == tensors


def test_shards_versions_and_scalars_come_together(tmp_path: Path) -> None:
    one = {"0/0.0/param/w": RawTensor("F32", (1,), b"abcd")}
    two = {"0/head/param/w": RawTensor("F32", (1,), b"efgh")}
    scalars = {"0/head/optimizer/w/step": 5, "rate": 0.1, "flag": True, "none": None}
    found = read_checkpoint(save(tmp_path, one, two, scalars=scalars, versions={"0/0.0": 3}))
    assert found.subnets == 9
    assert found.tensors == one | two
    assert found.versions == {"0/0.0": 3}
    assert found.scalars == scalars
    assert [type(value) for value in found.scalars.values()] == [int, float, bool, type(None)]


@given(number=st.integers(0, (1 << 64) - 1))
def test_a_scalar_keeps_its_bits(tmp_path_factory: pytest.TempPathFactory, number: int) -> None:
    (value,) = struct.unpack(">d", struct.pack(">Q", number))
    directory = save(tmp_path_factory.mktemp("checkpoint"), scalars={"x": value})
    found = read_checkpoint(directory).scalars["x"]
    assert struct.pack(">d", found) == struct.pack(">Q", number)


@given(place=st.integers(0, 10**6), bit=st.integers(0, 7))
def test_a_flipped_bit_is_an_error(
    tmp_path_factory: pytest.TempPathFactory, place: int, bit: int
) -> None:
    tensors = {"a": RawTensor("F32", (2,), b"12345678"), "b": RawTensor("U8", (3,), b"abc")}
    directory = save(tmp_path_factory.mktemp("checkpoint"), tensors)
    path = directory / "stage-0.safetensors"
    data = bytearray(path.read_bytes())
    data[place % len(data)] ^= 1 << bit
    path.write_bytes(data)
    with pytest.raises(LogError, match=r"stage-0.safetensors"):
        read_checkpoint(directory)


def test_a_short_or_missing_shard_is_an_error(tmp_path: Path) -> None:
    directory = save(tmp_path, {"a": RawTensor("F32", (2,), b"12345678")})
    path = directory / "stage-0.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(LogError, match=f"expected {len(whole)} bytes, found {len(whole) - 1}"):
        read_checkpoint(directory)
    path.unlink()
    with pytest.raises(LogError, match="No such file"):
        read_checkpoint(directory)


def test_a_directory_without_manifest_is_no_checkpoint(tmp_path: Path) -> None:
    write_shard(tmp_path, "stage-0.safetensors", {})
    with pytest.raises(ConfigError, match="not a finished checkpoint"):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"shards": 3},
        {"shards": [{"file": "x"}]},
        {"versions": {"0/0.0": "x"}},
        {"versions": None},
        {"scalars": {"x": {"float": "zz"}}},
        {"scalars": {"x": {"float": "00"}}},
        {"subnets": None},
        {"shards": [{"file": "../stage-0.safetensors", "bytes": 1, "crc32": []}]},
    ],
)
def test_a_damaged_manifest_is_an_error(tmp_path: Path, change: dict[str, Any]) -> None:
    path = save(tmp_path, {}) / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(LogError, match=r"manifest\.json"):
        read_checkpoint(tmp_path)


def test_a_tensor_in_two_shards_is_an_error(tmp_path: Path) -> None:
    tensors = {"a": RawTensor("F32", (2,), b"12345678")}
    with pytest.raises(LogError, match="a is in two shards"):
        read_checkpoint(save(tmp_path, tensors, tensors))


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (RawTensor("F32", (2,), b"1234"), "have 8 bytes, found 4"),
        (RawTensor("float32", (1,), b"1234"), "dtype 'float32'"),
        (RawTensor("F32", (-1, -1), b"1234"), "F32 of shape"),
    ],
)
def test_bytes_that_do_not_fit_are_refused(tmp_path: Path, tensor: RawTensor, message: str) -> None:
    with pytest.raises(LogError, match=message):
        write_shard(tmp_path, "stage-0.safetensors", {"a/": {"b": tensor}})
    assert list(tmp_path.iterdir()) == []
