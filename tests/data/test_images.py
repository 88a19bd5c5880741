"""Image data: strict files, epochs, purity."""

from __future__ import annotations

import gzip
import json
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from naspipe.config.errors import ConfigError, DataError
from naspipe.data import images as digits
from naspipe.data import images as image_folder
from naspipe.data.images import ArraySource, ImageData, keyed_random
from search_spaces.debian.fashion_mnist import read_idx


def small_data(size: int = 10, batch_size: int = 4, split: str = "train") -> ImageData:
    pixels = np.arange(size * 4, dtype=np.uint8).reshape(size, 2, 2)
    source = ArraySource(pixels, np.arange(size), mean=0, spread=1)
    info = {"channels": 1, "height": 2, "width": 2, "classes": size}
    return ImageData(source, batch_size, info=info, record={"name": "small"}, split=split)


def test_every_epoch_is_a_permutation_and_its_odd_batch_is_kept() -> None:
    data = small_data()
    assert data.batches_per_epoch == 3
    epochs = []
    for epoch in range(2):
        batches = [data(5, 3 * epoch + place) for place in range(3)]
        assert [len(batch["target"]) for batch in batches] == [4, 4, 2]
        epochs.append(torch.cat([batch["target"] for batch in batches]).tolist())
        for batch in batches:
            assert torch.equal(batch["input"][:, 0, 0, 0], 4.0 * batch["target"])
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(10))
    assert epochs[0] != epochs[1]
    assert epochs[0] == keyed_random(5, 0).permutation(10).tolist()


def test_order_is_fixed_for_good() -> None:
    """numpy promises these streams; if this fails, recorded runs cannot be made again."""
    expected = np.random.RandomState([5, 0, 1, 0]).permutation(6).tolist()
    assert keyed_random(5, 1).permutation(6).tolist() == expected
    assert keyed_random(1 << 32).randint(1000) != keyed_random(1).randint(1000)


def test_pure_and_fresh() -> None:
    data = small_data()
    expected = {(s, n): data(s, n)["target"].tolist() for s in (1, 2) for n in range(9)}
    state = np.random.get_state()[1].tolist()
    other = small_data()
    for key in sorted(expected, reverse=True):
        assert other(*key)["target"].tolist() == expected[key]
    data(1, 0)["input"].zero_()
    assert not torch.equal(data(1, 0)["input"], torch.zeros(4, 1, 2, 2))
    assert np.random.get_state()[1].tolist() == state


def test_valid_keeps_its_order_and_bad_input_is_refused() -> None:
    assert small_data(split="valid")(7, 4)["target"].tolist() == [4, 5, 6, 7]
    with pytest.raises(ConfigError, match="batch_size must be at least 1"):
        small_data(batch_size=0)
    with pytest.raises(DataError, match="there is no image"):
        small_data(size=0)
    with pytest.raises(ConfigError, match="count from 0"):
        small_data()(1, -1)


def test_digits_are_scikit_learns() -> None:
    datasets = pytest.importorskip("sklearn.datasets")
    bunch = datasets.load_digits()
    pixels, labels = digits._read_digits(digits._digits_file())
    assert np.array_equal(pixels, bunch.images)
    assert np.array_equal(labels, bunch.target)
    parts = [digits.open_digits(64, split) for split in ("train", "valid", "test")]
    assert [len(part) for part in parts] == [1437, 180, 180]
    batch = parts[0](1, 0)
    assert batch["input"].shape == (64, 1, 8, 8)
    assert batch["input"].dtype == torch.float32
    json.dumps(parts[0].record)


def test_damaged_digits(tmp_path: Path) -> None:
    path = tmp_path / "digits.csv.gz"
    row = ",".join(["17"] * 64 + ["3"])
    for content in (b"junk", gzip.compress(b"1,2\n"), gzip.compress(row.encode())):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"digits\.csv\.gz: expected"):
            digits._read_digits(path)


def idx(shape: tuple[int, ...], content: bytes) -> bytes:
    header = bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape)
    return header + content


def test_idx_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(idx((2, 3), bytes(range(6)))))
    assert read_idx(path, 2).tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (gzip.compress(idx((2, 3), bytes(5))), "expected 6 bytes for shape .* found 5"),
        (gzip.compress(idx((2, 3), bytes(7))), "found more"),
        (gzip.compress(idx((6,), bytes(6))), "expected an IDX header 00000802"),
        (gzip.compress(idx((1 << 31, 1 << 31), b"")), "is more than"),
        (gzip.compress(b""), "found nothing"),
        (idx((2, 3), bytes(6)), "expected a gzipped IDX file"),
        (gzip.compress(idx((2, 3), bytes(6)))[:-9], "a.gz: expected"),
    ],
    ids=["short", "long", "shape", "huge", "empty", "not compressed", "cut off"],
)
def test_damaged_idx(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "a.gz").write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_idx(tmp_path / "a.gz", 2)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    image = pytest.importorskip("PIL.Image", reason="Pillow is optional and not installed")
    rng = np.random.RandomState(0)
    for split, number in (("train", 5), ("val", 2)):
        for name in ("cat", "dog"):
            place = tmp_path / split / name
            place.mkdir(parents=True)
            for index in range(number):
                pixels = rng.randint(0, 255, (20 + index, 30, 3)).astype(np.uint8)
                image.fromarray(pixels).save(place / f"{index}.png")
    return tmp_path


def test_image_folder(folder: Path) -> None:
    data = image_folder.open_image_folder(folder, 4, "train", size=16)
    assert data.info == {"channels": 3, "height": 16, "width": 16, "classes": 2}
    batch = data(1, 0)
    assert batch["input"].shape == (4, 3, 16, 16)
    assert batch["input"].dtype == torch.float32
    again = image_folder.open_image_folder(folder, 4, "train", size=16)
    for number in (5, 0, 3):
        assert torch.equal(again(1, number)["input"], data(1, number)["input"])
    assert not torch.equal(data(1, 0)["input"], data(2, 0)["input"])
    json.dumps(data.record)
    valid = image_folder.open_image_folder(folder, 4, "valid", size=16)
    assert torch.equal(valid(1, 0)["input"], valid(2, 1)["input"])
    assert valid(1, 0)["target"].tolist() == [0, 0, 1, 1]


def test_damaged_image_is_named(folder: Path) -> None:
    path = folder / "val" / "cat" / "0.png"
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(DataError, match=r"0\.png: cannot be decoded"):
        image_folder.open_image_folder(folder, 1, "valid", size=16)(1, 0)


def test_image_folder_of_another_shape(folder: Path) -> None:
    with pytest.raises(DataError, match="expected a folder train"):
        image_folder.open_image_folder(folder / "val", 4, "train")
    (folder / "val" / "cow").mkdir()
    with pytest.raises(DataError, match="class 'cow' is not one of train's 2"):
        image_folder.open_image_folder(folder, 4, "valid")


def test_without_pillow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.delitem(sys.modules, "PIL.Image", raising=False)
    with pytest.raises(DataError, match="run 'pip install pillow'"):
        image_folder.open_image_folder(tmp_path, 4, "train")
