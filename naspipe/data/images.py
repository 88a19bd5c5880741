"""Batches of images, and the image data sets that need no preparation.

:class:`ImageData` makes batches from a source of images: an array in memory, such as scikit-learn's
digits, or a folder of image files, which Pillow decodes on demand.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib
import importlib.metadata
import importlib.util
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from naspipe.config.errors import ConfigError, DataError
from naspipe.data.cache import file_record

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]

_WORD = 0xFFFF_FFFF
_ORDERS_KEPT = 8  # of all data sets; subnets in flight may be on both sides of an epoch's end


def keyed_random(*key: int) -> np.random.RandomState:
    """Return a generator whose draws depend only on ``key``; each number may have 64 bits.

    It is a RandomState, because numpy guarantees that its streams never change.
    """
    words = [part for number in key for part in (number & _WORD, (number >> 32) & _WORD)]
    return np.random.RandomState(words)


@dataclass(frozen=True, slots=True)
class ArraySource:
    """A source of images in one array (or memory map) of bytes, (N, H, W) or (N, H, W, C)."""

    pixels: npt.NDArray[np.uint8]
    targets: IntArray
    mean: float
    """Mean and standard deviation of the pixels, in units of a pixel."""
    spread: float

    def images(self, rows: Sequence[int], seed: int, sequence_id: int) -> FloatArray:
        """Return images ``rows``, normalised, as (B, C, H, W); nothing in them is random."""
        raw = np.asarray(self.pixels[np.asarray(rows, dtype=np.int64)], dtype=np.float32)
        if raw.ndim == 3:
            raw = raw[..., None]
        scaled = (raw - np.float32(self.mean)) / np.float32(self.spread)
        return np.ascontiguousarray(scaled.transpose(0, 3, 1, 2))


class ImageData:
    """The batch of a sequence ID, as a pure function of (seed, sequence ID).

    Each epoch is a permutation of the images (in train; the other splits keep their order), cut
    into batches of ``batch_size``; the last batch may be smaller and is kept.
    """

    def __init__(
        self,
        source: ArraySource | FolderSource,
        batch_size: int,
        *,
        info: dict[str, int],
        record: dict[str, Any],
        split: str = "train",
    ) -> None:
        if batch_size < 1:
            raise ConfigError(f"batch_size must be at least 1, got {batch_size}")
        self._source = source
        self._batch_size = batch_size
        self._shuffle = split == "train"
        self._size = len(source.targets)
        if not self._size:
            raise DataError(f"data set '{record.get('name')}', split {split}: there is no image")
        self.batches_per_epoch = -(-self._size // batch_size)
        self.info = info
        """channels, height, width, classes"""
        self.record = {**record, "split": split, "batch_size": batch_size}

    def __len__(self) -> int:
        return self._size

    def __call__(self, seed: int, sequence_id: int) -> dict[str, torch.Tensor]:
        """Return new tensors: float32 input (B, C, H, W), normalised, and int64 target (B,)."""
        if sequence_id < 0:
            raise ConfigError(f"sequence IDs count from 0, got {sequence_id}")
        epoch, place = divmod(sequence_id, self.batches_per_epoch)
        first = place * self._batch_size
        order = _drawn_order(self._size, seed, epoch) if self._shuffle else np.arange(self._size)
        rows = order[first : first + self._batch_size]
        images = self._source.images(rows.tolist(), seed, sequence_id)
        return {
            "input": torch.from_numpy(images),
            "target": torch.from_numpy(self._source.targets[rows].astype(np.int64)),
        }


@lru_cache(_ORDERS_KEPT)
def _drawn_order(size: int, seed: int, epoch: int) -> IntArray:
    order = keyed_random(seed, epoch).permutation(size).astype(np.int64)
    order.setflags(write=False)
    return order


NUM_CLASSES = 10
_SIDE = 8
_BRIGHTEST = 16
_DIGITS_MEAN, _DIGITS_SPREAD = 4.884, 6.017  # of all pixels, which are 0 to 16
_TENTHS = {"train": (0, 8), "valid": (8, 9), "test": (9, 10)}
_SPLIT_KEY = 0
_MAX_BYTES = 10_000_000


def open_digits(batch_size: int, split: str) -> ImageData:
    """Open one split: eight tenths train, one tenth valid, one tenth test; they never change."""
    path = _digits_file()
    pixels, labels = _read_digits(path)
    order = keyed_random(_SPLIT_KEY).permutation(len(labels))
    low, high = (len(labels) * tenth // 10 for tenth in _TENTHS[split])
    rows = np.sort(order[low:high])
    record: dict[str, Any] = {
        "name": "digits",
        "source": "scikit-learn's digits",
        "version": importlib.metadata.version("scikit-learn"),
        "counts": {"images": len(labels)},
        "sha256": {path.name: file_record(path)["sha256"]},
    }
    source = ArraySource(pixels[rows], labels[rows], _DIGITS_MEAN, _DIGITS_SPREAD)
    info = {"channels": 1, "height": _SIDE, "width": _SIDE, "classes": NUM_CLASSES}
    return ImageData(source, batch_size, info=info, record=record, split=split)


def _digits_file() -> Path:
    # The file is read without importing scikit-learn, which takes two seconds in every process.
    spec = importlib.util.find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise DataError(
            "data set 'digits' comes with scikit-learn, which is not installed: run "
            "'pip install scikit-learn'"
        )
    return Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz"


def _read_digits(path: Path) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    try:
        with gzip.open(path, "rb") as file:
            lines = file.read(_MAX_BYTES).decode("ascii").split()
        values = np.array([line.split(",") for line in lines], dtype=np.int64)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise DataError(
            f"{path}: expected lines of whole numbers ({error}): install scikit-learn anew"
        ) from None
    if values.ndim != 2 or values.shape[1] != _SIDE * _SIDE + 1 or values.min() < 0:
        raise DataError(
            f"{path}: expected lines of {_SIDE * _SIDE + 1} numbers, found shape {values.shape}"
        )
    pixels, labels = values[:, :-1], values[:, -1]
    if pixels.max() > _BRIGHTEST or labels.max() >= NUM_CLASSES:
        raise DataError(
            f"{path}: expected pixels up to {_BRIGHTEST} and classes below {NUM_CLASSES}, found "
            f"{pixels.max()} and {labels.max()}"
        )
    return pixels.astype(np.uint8).reshape(-1, _SIDE, _SIDE), labels


_ENDINGS = frozenset({".jpg", ".jpeg", ".png"})
_FOLDERS = {"train": ("train",), "valid": ("valid", "val"), "test": ("test", "valid", "val")}
_PHOTO_MEAN = np.array([0.485, 0.456, 0.406], np.float32)  # of ImageNet's channels, 0 to 1
_PHOTO_SPREAD = np.array([0.229, 0.224, 0.225], np.float32)
_MAX_PIXELS = 89_000_000  # just below the number at which Pillow warns
_SHORT_SIDE = 256 / 224  # length of the short side after resizing, relative to the crop


@dataclass(frozen=True, slots=True)
class FolderSource:
    """A source of the images of one split's folder, decoded on demand."""

    paths: tuple[Path, ...]
    targets: IntArray
    size: int
    """Height and width of the crop."""
    is_random: bool
    """True to crop and flip at random (train), False to crop the centre."""

    def images(self, rows: Sequence[int], seed: int, sequence_id: int) -> FloatArray:
        """Return images ``rows`` as (B, 3, H, W); draws are keyed by (seed, sequence ID, row)."""
        batch = np.empty((len(rows), 3, self.size, self.size), np.float32)
        for place, row in enumerate(rows):
            draws = (0.5, 0.5, 1.0)
            if self.is_random:
                left, top, flip = keyed_random(seed, sequence_id, row).random_sample(3)
                draws = (float(left), float(top), float(flip))
            batch[place] = _decode(self.paths[row], self.size, draws)
        return batch


def open_image_folder(directory: Path, batch_size: int, split: str, size: int = 224) -> ImageData:
    """Open one split of an image folder as crops of ``size`` x ``size`` pixels."""
    pillow = _pillow()
    if size < 1:
        raise ConfigError(f"image size must be at least 1, got {size}")
    folder = _split_folder(directory, split)
    classes = _class_names(_split_folder(directory, "train"))
    paths, targets = _list_images(folder, classes)
    listing = hashlib.sha256()
    for path in paths:
        listing.update(f"{path.relative_to(folder).as_posix()}\0{path.stat().st_size}\n".encode())
    record: dict[str, Any] = {
        "name": "image-folder",
        "source": "image folder",
        "version": "unknown",
        "counts": {"images": len(paths), "classes": len(classes)},
        # The hash covers names and sizes: reading every image on each start would take minutes.
        "sha256": {"listing": listing.hexdigest()},
        "image_size": size,
        "pillow": pillow.__version__,
    }
    source = FolderSource(paths, targets, size, is_random=split == "train")
    info = {"channels": 3, "height": size, "width": size, "classes": len(classes)}
    return ImageData(source, batch_size, info=info, record=record, split=split)


def _split_folder(directory: Path, split: str) -> Path:
    for name in _FOLDERS[split]:
        if (directory / name).is_dir():
            return directory / name
    raise DataError(
        f"{directory}: expected a folder {' or '.join(_FOLDERS[split])} with one folder per class "
        f"in it, found none"
    )


def _class_names(folder: Path) -> list[str]:
    names = sorted(path.name for path in folder.iterdir() if path.is_dir())
    if not names:
        raise DataError(f"{folder}: expected one folder per class, found none")
    return names


def _list_images(folder: Path, classes: list[str]) -> tuple[tuple[Path, ...], IntArray]:
    unknown = sorted(set(_class_names(folder)) - set(classes))
    if unknown:
        raise DataError(f"{folder}: class {unknown[0]!r} is not one of train's {len(classes)}")
    paths: list[Path] = []
    targets: list[int] = []
    for target, name in enumerate(classes):
        if not (folder / name).is_dir():
            continue
        found = sorted(p for p in (folder / name).iterdir() if p.suffix.lower() in _ENDINGS)
        paths += found
        targets += [target] * len(found)
    if not paths:
        raise DataError(f"{folder}: expected images (.jpg, .jpeg, .png) in it, found none")
    return tuple(paths), np.array(targets, np.int64)


def _decode(path: Path, size: int, draws: tuple[float, float, float]) -> FloatArray:
    """Return the (3, size, size) crop of an image: ``draws`` place it, and flip it if below 0.5."""
    pillow = _pillow()
    # Pillow raises different exceptions for broken files of different formats.
    bombs = (pillow.DecompressionBombError, pillow.DecompressionBombWarning)
    broken: tuple[type[Exception], ...] = (OSError, ValueError, SyntaxError, EOFError, *bombs)
    try:
        with pillow.open(path) as image:
            width, height = image.size
            if width * height > _MAX_PIXELS:
                raise DataError(f"{path}: {width}x{height} pixels, at most {_MAX_PIXELS} are read")
            whole = image.convert("RGB")
            scale = size * _SHORT_SIDE / min(whole.size)
            new_size = tuple(max(size, round(side * scale)) for side in whole.size)
            small = whole.resize(new_size, pillow.Resampling.BILINEAR)
    except broken as error:
        raise DataError(f"{path}: cannot be decoded as an image ({error})") from None
    left = min(int(draws[0] * (small.width - size + 1)), small.width - size)
    top = min(int(draws[1] * (small.height - size + 1)), small.height - size)
    crop = np.asarray(small.crop((left, top, left + size, top + size)), np.float32) / 255
    if draws[2] < 0.5:
        crop = crop[:, ::-1]
    return ((crop - _PHOTO_MEAN) / _PHOTO_SPREAD).astype(np.float32).transpose(2, 0, 1)


def _pillow() -> Any:
    try:
        return importlib.import_module("PIL.Image")
    except ImportError:
        raise DataError(
            "image folders are decoded by Pillow, which is not installed: run 'pip install pillow'"
        ) from None
