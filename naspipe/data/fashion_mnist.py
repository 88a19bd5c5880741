"""Fashion-MNIST out of its Debian package: 28x28 grey images of ten kinds of clothing."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from naspipe.config.errors import DataError
from naspipe.data.cache import Description
from naspipe.data.debian import unpacked
from naspipe.data.idx import read_idx
from naspipe.data.images import ArraySource, ImageData, PreparationProgress

RECIPE = 1
NUM_CLASSES = 10
_PACKAGE = "dataset-fashion-mnist"
_PARTS = {"train": "train", "test": "t10k"}
_MEAN, _SPREAD = 72.94, 90.02  # of the training images' pixels


def build(
    directory: Path, name: str, source: Path | None, progress: PreparationProgress
) -> Description:
    """Write the images and labels into the empty ``directory`` as .npy files."""
    counts = {}
    with tempfile.TemporaryDirectory(prefix=".work-", dir=directory) as work:
        progress.phase(f"fetch {_PACKAGE}" if source is None else f"read {source}")
        package = unpacked([_PACKAGE], Path(work), dataset=name, source=source)[_PACKAGE]
        folder = package.directory / "usr" / "share" / "datasets" / "fashion-mnist"
        progress.phase("unpack images", len(_PARTS))
        for part, prefix in _PARTS.items():
            images = read_idx(folder / f"{prefix}-images-idx3-ubyte.gz", 3)
            labels = read_idx(folder / f"{prefix}-labels-idx1-ubyte.gz", 1)
            if len(images) != len(labels) or (len(labels) and labels.max() >= NUM_CLASSES):
                raise DataError(
                    f"{folder}: expected one label of 0 to {NUM_CLASSES - 1} for each image of "
                    f"{prefix}, found {len(images)} images and {len(labels)} labels"
                )
            np.save(directory / f"{part}-images.npy", images, allow_pickle=False)
            np.save(directory / f"{part}-labels.npy", labels, allow_pickle=False)
            counts[f"{part}_images"] = len(images)
            progress.advance()
    return Description(
        source=f"Debian package {_PACKAGE}",
        version=package.version,
        licence="MIT",
        recipe=RECIPE,
        counts=counts,
    )


def open_images(directory: Path, batch_size: int, split: str, record: dict[str, Any]) -> ImageData:
    """Open one split: valid is the first half of the published test images, test the second."""
    part = "train" if split == "train" else "test"
    pixels = np.load(directory / f"{part}-images.npy", mmap_mode="r", allow_pickle=False)
    labels = np.load(directory / f"{part}-labels.npy", allow_pickle=False).astype(np.int64)
    half = len(labels) // 2
    rows = {"train": slice(None), "valid": slice(half), "test": slice(half, None)}[split]
    source = ArraySource(pixels[rows], labels[rows], _MEAN, _SPREAD)
    height, width = pixels.shape[1:]
    info = {"channels": 1, "height": height, "width": width, "classes": NUM_CLASSES}
    return ImageData(source, batch_size, info=info, record=record, split=split)
