"""ImageNet-style folders, ``train/CLASS/NAME.jpg``; decoding needs Pillow, an optional package."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from naspipe.config.errors import ConfigError, DataError
from naspipe.data.images import ImageData, keyed_random
from naspipe.data.ports import FloatArray, IntArray

_ENDINGS = frozenset({".jpg", ".jpeg", ".png"})
_FOLDERS = {"train": ("train",), "valid": ("valid", "val"), "test": ("test", "valid", "val")}
_PHOTO_MEAN = np.array([0.485, 0.456, 0.406], np.float32)  # of ImageNet's channels, 0 to 1
_PHOTO_SPREAD = np.array([0.229, 0.224, 0.225], np.float32)
_MAX_PIXELS = 89_000_000  # just below the number at which Pillow warns
_SHORT_SIDE = 256 / 224  # the short side after resizing, in crops


@dataclass(frozen=True, slots=True)
class FolderSource:
    """The images of one split's folder, decoded when they are asked for."""

    paths: tuple[Path, ...]
    targets: IntArray
    size: int
    """Height and width of the crop."""
    is_random: bool
    """Crop at a random place and flip at random (train), or crop the centre."""

    def images(self, rows: Sequence[int], seed: int, sequence_id: int) -> FloatArray:
        """Return images ``rows``; random draws are keyed by (seed, sequence ID, row)."""
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
    record: dict[str, Any] = {
        "name": "image-folder",
        "source": "image folder",
        "version": "unknown",
        "counts": {"images": len(paths), "classes": len(classes)},
        # Of names and sizes: reading every image on each start would take minutes.
        "sha256": {"listing": _listing_digest(folder, paths)},
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


def _listing_digest(folder: Path, paths: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(f"{path.relative_to(folder).as_posix()}\0{path.stat().st_size}\n".encode())
    return digest.hexdigest()


def _decode(path: Path, size: int, draws: tuple[float, float, float]) -> FloatArray:
    """Return the (3, size, size) crop of an image: ``draws`` place it and flip it if below 0.5."""
    pillow = _pillow()
    # Pillow reports broken files in as many ways as there are formats.
    bombs = (pillow.DecompressionBombError, pillow.DecompressionBombWarning)
    broken: tuple[type[Exception], ...] = (OSError, ValueError, SyntaxError, EOFError, *bombs)
    try:
        with pillow.open(path) as image:
            width, height = image.size
            if width * height > _MAX_PIXELS:
                raise DataError(f"{path}: {width}x{height} pixels, at most {_MAX_PIXELS} are read")
            small = _resized(image.convert("RGB"), size, pillow.Resampling.BILINEAR)
    except broken as error:
        raise DataError(f"{path}: cannot be decoded as an image ({error})") from None
    left = min(int(draws[0] * (small.width - size + 1)), small.width - size)
    top = min(int(draws[1] * (small.height - size + 1)), small.height - size)
    crop = np.asarray(small.crop((left, top, left + size, top + size)), np.float32) / 255
    if draws[2] < 0.5:
        crop = crop[:, ::-1]
    return ((crop - _PHOTO_MEAN) / _PHOTO_SPREAD).astype(np.float32).transpose(2, 0, 1)


def _resized(image: Any, size: int, method: Any) -> Any:
    scale = size * _SHORT_SIDE / min(image.size)
    new_size = tuple(max(size, round(side * scale)) for side in image.size)
    return image.resize(new_size, method)


def _pillow() -> Any:
    try:
        return importlib.import_module("PIL.Image")
    except ImportError:
        raise DataError(
            "image folders are decoded by Pillow, which is not installed: run 'pip install pillow'"
        ) from None
