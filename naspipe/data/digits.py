"""scikit-learn's handwritten digits: 8x8 grey images that come with the package."""

from __future__ import annotations

import gzip
import importlib.metadata
import importlib.util
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from naspipe.config.errors import DataError
from naspipe.data.cache import file_record
from naspipe.data.images import ArraySource, ImageData, keyed_random

NUM_CLASSES = 10
_SIDE = 8
_BRIGHTEST = 16
_DIGITS_MEAN, _DIGITS_SPREAD = 4.884, 6.017  # of all pixels, which are 0 to 16
_TENTHS = {"train": (0, 8), "valid": (8, 9), "test": (9, 10)}
_SPLIT_KEY = 0
_MAX_BYTES = 10_000_000


def open_digits(batch_size: int, split: str) -> ImageData:
    """Open one split: eight tenths train, one valid, one test, drawn once and for all."""
    path = _file()
    pixels, labels = _read(path)
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


def _file() -> Path:
    # Read without importing scikit-learn, which takes two seconds in every process.
    spec = importlib.util.find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise DataError(
            "data set 'digits' comes with scikit-learn, which is not installed: run "
            "'pip install scikit-learn'"
        )
    return Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz"


def _read(path: Path) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
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
