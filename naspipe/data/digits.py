"""scikit-learn's handwritten digits: 8x8 grey images that come with the package."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from naspipe.core.errors import DataError
from naspipe.data.images import ArraySource, ImageData, keyed_random

NUM_CLASSES = 10
_MEAN, _SPREAD = 4.884, 6.017  # of all pixels, which are 0 to 16
_TENTHS = {"train": (0, 8), "valid": (8, 9), "test": (9, 10)}
_SPLIT_KEY = 0


def open_images(batch_size: int, split: str) -> ImageData:
    """Open one split: eight tenths train, one valid, one test, drawn once and for all."""
    try:
        import sklearn
        from sklearn.datasets import load_digits
    except ImportError:
        raise DataError(
            "data set 'digits' comes with scikit-learn, which is not installed: run "
            "'pip install scikit-learn'"
        ) from None
    bunch = load_digits()
    pixels = np.ascontiguousarray(bunch.images, dtype=np.uint8)
    labels = np.asarray(bunch.target, dtype=np.int64)
    order = keyed_random(_SPLIT_KEY).permutation(len(labels))
    low, high = (len(labels) * tenth // 10 for tenth in _TENTHS[split])
    rows = np.sort(order[low:high])
    record: dict[str, Any] = {
        "name": "digits",
        "source": "scikit-learn's load_digits",
        "version": sklearn.__version__,
        "counts": {"images": len(labels)},
        "sha256": {"images": _digest(pixels), "labels": _digest(labels.astype(np.uint8))},
    }
    source = ArraySource(pixels[rows], labels[rows], _MEAN, _SPREAD)
    height, width = pixels.shape[1:]
    info = {"channels": 1, "height": height, "width": width, "classes": NUM_CLASSES}
    return ImageData(source, batch_size, info=info, record=record, split=split)


def _digest(array: np.typing.NDArray[np.uint8]) -> str:
    return hashlib.sha256(array.tobytes()).hexdigest()
