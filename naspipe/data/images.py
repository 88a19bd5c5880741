"""Batches of images: the part that all image data sets share."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from naspipe.config.errors import ConfigError, DataError
from naspipe.data.ports import FloatArray, ImageSource, IntArray

_WORD = 0xFFFF_FFFF
_ORDERS_KEPT = 4  # subnets in flight may stand on both sides of an epoch's end


def keyed_random(*key: int) -> np.random.RandomState:
    """Return a generator whose draws depend on ``key`` only; each number may have 64 bits.

    RandomState, because numpy has promised never to change its streams.
    """
    words = [part for number in key for part in (number & _WORD, (number >> 32) & _WORD)]
    return np.random.RandomState(words)


@dataclass(frozen=True, slots=True)
class ArraySource:
    """Images in one array (or memory map) of bytes, (N, H, W) or (N, H, W, C)."""

    pixels: npt.NDArray[np.uint8]
    targets: IntArray
    mean: float
    """Mean and spread of the pixels in units of a pixel."""
    spread: float

    def images(self, rows: Sequence[int], seed: int, sequence_id: int) -> FloatArray:
        """Return images ``rows``; nothing in them is random."""
        raw = np.asarray(self.pixels[np.asarray(rows, dtype=np.int64)], dtype=np.float32)
        if raw.ndim == 3:
            raw = raw[..., None]
        scaled = (raw - np.float32(self.mean)) / np.float32(self.spread)
        return np.ascontiguousarray(scaled.transpose(0, 3, 1, 2))


class ImageData:
    """The batch of a sequence ID, as a pure function of (seed, sequence ID).

    Each epoch is a permutation of the images (of train; the other splits keep their order) cut
    into batches of ``batch_size``; the last may be smaller and is kept.
    """

    def __init__(
        self,
        source: ImageSource,
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
        self._orders: OrderedDict[tuple[int, int], IntArray] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of images."""
        return self._size

    def __call__(self, seed: int, sequence_id: int) -> dict[str, torch.Tensor]:
        """Return float32 input (B, C, H, W), normalised, and int64 target (B,), fresh each time."""
        if sequence_id < 0:
            raise ConfigError(f"sequence IDs count from 0, got {sequence_id}")
        epoch, place = divmod(sequence_id, self.batches_per_epoch)
        first = place * self._batch_size
        rows = self._order(seed, epoch)[first : first + self._batch_size]
        images = self._source.images(rows.tolist(), seed, sequence_id)
        return {
            "input": torch.from_numpy(images),
            "target": torch.from_numpy(self._source.targets[rows].astype(np.int64)),
        }

    def _order(self, seed: int, epoch: int) -> IntArray:
        if not self._shuffle:
            return np.arange(self._size)
        order = self._orders.pop((seed, epoch), None)
        if order is None:
            order = keyed_random(seed, epoch).permutation(self._size).astype(np.int64)
        self._orders[seed, epoch] = order
        while len(self._orders) > _ORDERS_KEPT:
            self._orders.popitem(last=False)
        return order
