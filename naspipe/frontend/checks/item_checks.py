"""What is asked of a data set before a run: the same item for the same key, whatever came before.

Who keeps items that were drawn gives others in a process that begins elsewhere, and so does who
draws from generators of its own. So a few items are drawn in two processes, of which one has drawn
them before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from hashlib import blake2b
from multiprocessing import current_process
from typing import Any

import torch

from naspipe.config.errors import ConfigError, StageFailedError, TransportError
from naspipe.data.keyed.batch_digest import digest
from naspipe.data.keyed.dataset_batches import DatasetBatches
from naspipe.runtime.forking.apart import done_apart

ROWS = 2
"""Of each of the first two batches."""

_ITEM_SECONDS = 20.0
"""In which items are drawn; what takes longer is left alone."""


def check_items(data: object, name: str, seed: int) -> None:
    """The first items of a data set, as two epochs draw them, must follow from row and key.

    Nothing is drawn here, but in two processes. Where items cannot be drawn there, what is wrong
    is said with the first batch.

    Args:
        data: of a run; other than from a data set it is left alone.
        name: how messages call it.
        seed: of the run.

    Raises:
        ConfigError: naming the first row that is another one.
    """
    if not isinstance(data, DatasetBatches) or current_process().daemon:
        return
    with suppress(StageFailedError, TransportError, OSError):
        rows = [*_first_rows(data, seed)]
        earlier = done_apart(lambda _: _drawn(data, seed, rows, (0, 0, 1)), name, _ITEM_SECONDS)
        fresh = done_apart(lambda _: _drawn(data, seed, rows, (1,)), name, _ITEM_SECONDS)
        for place, row in enumerate(rows):
            first, again, late = earlier["items"][place]
            if first != again:
                raise _refused(name, row, "found another the second time")
            if fresh["items"][place] != [late]:
                raise _refused(name, row, "found another in a process that had drawn it before")


def _refused(name: str, row: int, found: str) -> ConfigError:
    return ConfigError(
        f"data {name}: expected the item in row {row} to follow from its row and the draws that "
        f"its key starts, {found}; keep nothing that was drawn, and draw from the global "
        f"generators of torch, numpy or Python"
    )


def _first_rows(data: DatasetBatches, seed: int) -> Iterator[int]:
    for number in range(min(2, data.batches_per_epoch)):
        yield from data.rows(seed, number)[:ROWS]


def _drawn(
    data: DatasetBatches, seed: int, rows: list[int], epochs: tuple[int, ...]
) -> dict[str, Any]:
    """Of each row, the digests of what these epochs draw, one after the other."""
    per_epoch = data.batches_per_epoch
    return {"items": [[_seen(data.item(seed, e * per_epoch, row)) for e in epochs] for row in rows]}


def _seen(item: Any) -> Any:
    """Something that is another thing for another item, as far as that can be told."""
    if isinstance(item, torch.Tensor):
        return digest(item)
    if isinstance(item, Mapping):
        return [[repr(key), _seen(item[key])] for key in item]
    if isinstance(item, list | tuple):
        return [_seen(each) for each in item]
    if callable(getattr(item, "tobytes", None)):  # an array, or an image
        return blake2b(item.tobytes(), digest_size=8).hexdigest()
    return repr(item) if isinstance(item, bool | int | float | complex | str | bytes) else None
