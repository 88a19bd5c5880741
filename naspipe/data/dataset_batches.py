"""``naspipe.from_dataset``: a map-style torch ``Dataset`` as batches by number.

All random draws for a batch use a key that depends on the seed, the number of the batch and the row
of the item; see :class:`DatasetBatches`.
"""

from __future__ import annotations

import hashlib
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate

from naspipe.config.errors import ConfigError
from naspipe.config.user_code import full_name
from naspipe.data.images import IntArray, keyed_random
from naspipe.data.loaders import LoaderPool
from naspipe.machine.determinism import kept_draws, one_thread, seed_all


def item_key(seed: int, number: int, row: int) -> int:
    """Return the key of the random draws of one item, by its row in the data set; a public rule."""
    return _key(f"{seed}/item/{number}/{row}")


def batch_key(seed: int, number: int) -> int:
    """Return the key of the random draws of a ``collate_fn``; a public rule."""
    return _key(f"{seed}/batch/{number}")


def _key(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


_USUAL = ("input", "target")
_RISES = 2
"""Number of times that batch numbers must rise before loader processes are started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """How items become batches; see :func:`from_dataset`."""

    batch_size: int
    shuffle: bool
    drop_last: bool
    fields: tuple[str, ...]
    collate_fn: Callable[[list[Any]], Any] | None
    transform: Callable[..., Any] | None
    workers: int
    timeout_seconds: float

    def __post_init__(self) -> None:
        for name, least in (("batch_size", 1), ("workers", 0)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise ConfigError(
                    f"from_dataset: expected {name} as a whole number of {least} or more, found "
                    f"{value!r:.80}"
                )
        if not self.timeout_seconds > 0:
            raise ConfigError(
                f"from_dataset: expected timeout_seconds above 0, found {self.timeout_seconds}"
            )


def from_dataset(
    dataset: Any,
    batch_size: int,
    *,
    shuffle: bool = True,
    drop_last: bool = False,
    fields: Sequence[str] = _USUAL,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    transform: Callable[..., Any] | None = None,
    workers: int = 0,
    timeout_seconds: float = 300.0,
) -> DatasetBatches:
    """Use a map-style torch ``Dataset`` as data for :func:`naspipe.train`: ``data(seed, number)``.

    The items of a batch, and all random draws for it, depend only on the seed and the batch's
    number, so that a resume or another number of stages or workers changes no bit.

    Args:
        dataset: a data set with ``__len__`` and ``__getitem__``. Its draws from the global
            generators of torch, numpy and Python are keyed, item by item; the generators are
            restored afterwards.
        batch_size: items per batch; the last batch of an epoch may have fewer.
        shuffle: draw a new order in each epoch; otherwise use the order of the data set.
        drop_last: omit a last batch that has fewer items.
        fields: names of the parts of an item, if items are tuples.
        collate_fn: converts a list of items to a dict of tensors by name, or a tuple of them;
            ``torch.utils.data.default_collate`` by default. Its draws are keyed, too.
        transform: called with each item of the data set and, if it has an argument called
            ``generator``, with a ``torch.Generator`` seeded with the item's key.
        workers: number of processes that make batches in advance, for each process that uses the
            data.
        timeout_seconds: time limit for one of their batches.

    Raises:
        ConfigError: if ``dataset`` is not a map-style data set, is empty, or cannot be batched in
            this way.
    """
    batching = Batching(
        batch_size=batch_size,
        shuffle=shuffle,
        drop_last=drop_last,
        fields=tuple(fields),
        collate_fn=collate_fn,
        transform=transform,
        workers=workers,
        timeout_seconds=timeout_seconds,
    )
    return DatasetBatches(dataset, batching)


class DatasetBatches:
    """The result of :func:`from_dataset`: returns batch ``number`` as new tensors by name.

    Epoch e is the permutation ``RandomState([seed, seed >> 32, e, e >> 32])`` (each word of 32
    bits) ``.permutation(len(dataset))``, cut into batches; see :meth:`rows`. Before item i of batch
    n is taken from the data set, the global generators are seeded with
    ``blake2b(f"{seed}/item/{n}/{i}", digest_size=8) >> 1``, and its transform continues with them;
    before items are collated, with that of ``{seed}/batch/{n}``. numpy's generator uses the lower
    32 bits of the key.
    """

    def __init__(self, dataset: Any, batching: Batching) -> None:
        self._size = _size_of(dataset)
        self._dataset = dataset
        self._batching = batching
        transform = batching.transform
        self._gives_generator = False
        if transform is not None:
            called = transform.forward if isinstance(transform, torch.nn.Module) else transform
            with suppress(TypeError, ValueError):  # unknown for some compiled callables
                self._gives_generator = "generator" in inspect.signature(called).parameters
        size = batching.batch_size
        self.batches_per_epoch = (
            self._size // size if batching.drop_last else -(-self._size // size)
        )
        if not self.batches_per_epoch:
            raise ConfigError(
                f"from_dataset: expected batch_size of at most {self._size}, the items there are, "
                f"with drop_last, found {size}"
            )
        own = getattr(dataset, "record", None) or {}
        self.record = {"name": full_name(dataset), "items": self._size, **own}
        """Its part of a run's definition."""
        self.record |= {"batch_size": size, "shuffle": batching.shuffle}
        if batching.drop_last:
            self.record["drop_last"] = True
        for name in ("collate_fn", "transform"):
            if (each := getattr(batching, name)) is not None:
                self.record[name] = getattr(each, "record", None) or full_name(each)
        self.made_of = [
            each for each in (dataset, batching.collate_fn, transform) if each is not None
        ]
        """Objects whose code makes the batches."""
        self._order: tuple[tuple[int, int], IntArray] | None = None
        self._pool: LoaderPool | None = None
        self._seen = (0, -1, 0)
        """This process, the last number requested, and how often numbers have risen."""

    def __len__(self) -> int:
        return self._size

    def rows(self, seed: int, number: int) -> list[int]:
        """Return the data set's rows in a batch, in the batch's order."""
        if number < 0:
            raise ConfigError(f"batches count from 0, got {number}")
        epoch, place = divmod(number, self.batches_per_epoch)
        first = place * self._batching.batch_size
        end = min(first + self._batching.batch_size, self._size)
        if not self._batching.shuffle:
            return list(range(first, end))
        if self._order is None or self._order[0] != (seed, epoch):
            order = keyed_random(seed, epoch).permutation(self._size).astype(np.int64)
            self._order = (seed, epoch), order
        found: list[int] = self._order[1][first:end].tolist()
        return found

    def __call__(self, seed: int, number: int) -> dict[str, torch.Tensor]:
        """Return the batch; the first dimension of each field counts the items.

        Raises:
            ConfigError: if the items cannot be batched.
            TransportError: if a loader process has ended, or is too slow.
        """
        if self._batching.workers and self._goes_on(number):
            if self._pool is None or not self._pool.is_open:
                batching = self._batching
                self._pool = LoaderPool(self.make, batching.workers, batching.timeout_seconds)
            return self._pool.batch(seed, number)
        return self.make(seed, number)

    def make(self, seed: int, number: int) -> dict[str, torch.Tensor]:
        """Make the batch in this process; see :meth:`__call__`."""
        with kept_draws(), one_thread():
            items = [self._keyed(seed, number, row) for row in self.rows(seed, number)]
            seed_all(batch_key(seed, number))
            collate = self._batching.collate_fn
            if collate is None:
                _check_fields(items, self.rows(seed, number))
            collated = (collate or default_collate)(items)
        return self._named(collated)

    def item(self, seed: int, number: int, row: int) -> Any:
        """Make one item in this process, exactly as in the batch."""
        with kept_draws(), one_thread():
            return self._keyed(seed, number, row)

    def close(self) -> None:
        """End this process's loader processes; the next batches start new ones."""
        if self._pool is not None:
            self._pool.close()
        self._pool, self._seen = None, (0, -1, 0)

    def _goes_on(self, number: int) -> bool:
        """Return True if this process reads batches in sequence, so that loader processes help."""
        process, last, rises = self._seen
        if process != os.getpid():  # forked from the one that counted, or the first call
            self._pool, last, rises = None, number, 0
        self._seen = os.getpid(), number, rises + (number > last)
        return self._seen[2] >= _RISES

    def _keyed(self, seed: int, number: int, row: int) -> Any:
        key, transform = item_key(seed, number, row), self._batching.transform
        seed_all(key)
        item = self._dataset[row]
        if transform is None:
            return item
        if not self._gives_generator:
            return transform(item)
        return transform(item, generator=torch.Generator().manual_seed(key))

    def _named(self, collated: Any) -> dict[str, torch.Tensor]:
        """Return tensors by name, contiguous like those from a loader process."""
        fields = self._batching.fields
        if isinstance(collated, torch.Tensor):
            collated = (collated,)
            fields = fields[:1]
        if isinstance(collated, Mapping):
            named = dict(collated)
        elif isinstance(collated, tuple | list) and len(collated) == len(fields):
            named = dict(zip(fields, collated, strict=True))
        else:
            parts = isinstance(collated, tuple | list)
            found = f"{len(collated)} parts" if parts else type(collated).__name__
            raise ConfigError(
                f"from_dataset: expected batches of {len(fields)} parts, called "
                f"{', '.join(fields)}, found {found}; name them, as in "
                f"fields=('input', 'target', 'weight'), or have collate_fn return a dict"
            )
        return {
            str(name): each.detach().contiguous()
            for name, each in named.items()
            if isinstance(each, torch.Tensor)
        }


def _check_fields(items: Sequence[Any], rows: Sequence[int]) -> None:
    """Raise unless items that are mappings have the fields of the first one."""
    if not isinstance(items[0], Mapping):
        return
    for item, row in zip(items, rows, strict=True):
        missing = [name for name in items[0] if isinstance(item, Mapping) and name not in item]
        if missing:
            raise ConfigError(
                f"from_dataset: expected the item in row {row} to have the field {missing[0]!r}, "
                f"as the one in row {rows[0]} has, found {', '.join(map(str, item)) or 'none'}; "
                f"give every item the same fields, or a collate_fn"
            )


def _size_of(dataset: Any) -> int:
    """Return the number of items; raise if it is not a map-style data set or is empty."""
    what = "from_dataset: expected a map-style Dataset (with __getitem__ and __len__), found"
    if isinstance(dataset, DataLoader):
        raise ConfigError(
            f"{what} a DataLoader; give npp.from_dataset(loader.dataset, batch_size=...)"
        )
    is_iterable = isinstance(dataset, IterableDataset)
    if is_iterable or not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
        raise ConfigError(
            f"{what} {type(dataset).__name__}; an item must be found by its number, or no batch "
            f"could be made again after a resume"
        )
    size = len(dataset)
    if not size:
        raise ConfigError(f"from_dataset: expected items, found an empty {type(dataset).__name__}")
    return size
