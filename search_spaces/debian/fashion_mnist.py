"""Fashion-MNIST from its Debian package: 28x28 grey images of ten kinds of clothing.

The package contains IDX files, the format of the MNIST family; :func:`read_idx` reads them
strictly.
"""

from __future__ import annotations

import gzip
import math
import tempfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from naspipe.config.errors import DataError
from naspipe.data.cache import Description, PreparationProgress
from naspipe.data.images import ArraySource, ImageData
from search_spaces.debian.packages import unpacked

RECIPE = 1
NUM_CLASSES = 10
_PACKAGE = "dataset-fashion-mnist"
_PARTS = {"train": "train", "test": "t10k"}
_MEAN, _SPREAD = 72.94, 90.02  # of the training images' pixels
_UNSIGNED_BYTE = 0x08
_MAX_BYTES = 1 << 30


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


def read_idx(path: Path, dimensions: int) -> npt.NDArray[np.uint8]:
    """Return the array of unsigned bytes in a gzipped IDX file of ``dimensions`` dimensions.

    The file must match its header exactly, and be no larger than 1 GiB unpacked.
    """
    header_bytes = 4 + 4 * dimensions
    try:
        with gzip.open(path, "rb") as file:
            header = file.read(header_bytes)
            expected = bytes([0, 0, _UNSIGNED_BYTE, dimensions])
            if len(header) < header_bytes or header[:4] != expected:
                raise DataError(
                    f"{path}: expected an IDX header {expected.hex()} and {dimensions} sizes, "
                    f"found {header[:4].hex() or 'nothing'}"
                )
            shape = tuple(int(size) for size in np.frombuffer(header[4:], ">u4"))
            num_bytes = math.prod(shape)
            if num_bytes > _MAX_BYTES:
                raise DataError(f"{path}: shape {shape} is more than {_MAX_BYTES} bytes")
            content = file.read(num_bytes + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: expected a gzipped IDX file ({error})") from None
    if len(content) != num_bytes:
        found = "more" if len(content) > num_bytes else str(len(content))
        raise DataError(f"{path}: expected {num_bytes} bytes for shape {shape}, found {found}")
    return np.frombuffer(content, np.uint8).reshape(shape)
