"""Check a run's data before anything is written: the same call must return the same batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from hashlib import blake2b
from multiprocessing import current_process
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, SequentialSampler, default_collate

from naspipe.config.errors import ConfigError, LogError, StageFailedError, TransportError
from naspipe.config.user_code import users_code
from naspipe.data.dataset_batches import DatasetBatches
from naspipe.data.loaders import digest, field_digests, short_digest
from naspipe.jobs.batches_apart import batch_apart, first_batch
from naspipe.jobs.workload import Workload
from naspipe.machine.determinism import deterministic_torch
from naspipe.machine.forking import done_apart, in_own_thread
from naspipe.store.losses import read_losses
from naspipe.store.run_directory import RunDirectory

_ROWS = 2
"""Rows of each of the first two batches whose items are drawn again."""

_ITEM_SECONDS = 20.0
"""Time limit for drawing items to compare; slower items are not compared."""

_BATCH_SECONDS = 86400.0
"""Time limit for making the first batch."""

_RECIPE = (
    "make it from the seed and the number alone, as npp.from_dataset(dataset, batch_size) does"
)


def check_items(data: object, name: str, seed: int) -> None:
    """Check that row and key determine the first items of a data set, as drawn in two epochs.

    The items are drawn in two other processes. If they cannot be drawn there, the error is reported
    with the first batch. Only data from a data set are checked. Several rows are drawn, because an
    augmentation may apply to some items only.
    """
    if not isinstance(data, DatasetBatches) or current_process().daemon:
        return

    def drawn(*epochs: int) -> list[list[Any]]:
        def draw(_: Callable[[], None]) -> dict[str, Any]:
            first_of = [each * data.batches_per_epoch for each in epochs]
            return {"items": [[_seen(data.item(seed, y, row)) for y in first_of] for row in rows]}

        items: list[list[Any]] = done_apart(draw, name, _ITEM_SECONDS)["items"]
        return items

    with suppress(StageFailedError, TransportError, OSError):
        batches = range(min(2, data.batches_per_epoch))
        rows = [row for number in batches for row in data.rows(seed, number)[:_ROWS]]
        for row, earlier, fresh in zip(rows, drawn(0, 0, 1), drawn(1), strict=True):
            first, again, late = earlier
            if first == again and fresh == [late]:
                continue
            found = (
                "found another the second time"
                if first != again
                else "found another in a process that had drawn it before"
            )
            raise ConfigError(
                f"data {name}: expected the item in row {row} to follow from its row and the draws "
                f"that its key starts, {found}; keep nothing that was drawn, and draw from the "
                f"global generators of torch, numpy or Python"
            )


def _seen(item: Any) -> Any:
    """Return a value that differs for different items, as far as possible."""
    if isinstance(item, torch.Tensor):
        return digest(item)
    if isinstance(item, Mapping):
        return [[repr(key), _seen(item[key])] for key in item]
    if isinstance(item, list | tuple):
        return [_seen(each) for each in item]
    if callable(getattr(item, "tobytes", None)):  # an array, or an image
        return blake2b(item.tobytes(), digest_size=8).hexdigest()
    return repr(item) if isinstance(item, bool | int | float | complex | str | bytes) else None


def check_is_data(data: object, what: str = "data") -> None:
    """Check that data are a function of a seed and a number.

    Raises:
        ConfigError: for anything else; for a ``DataLoader`` or a ``Dataset``, the message says what
            to use instead.
    """
    expected = f"{what}: expected a function of (seed, sequence_id), found"
    if isinstance(data, DataLoader):
        same = [f"batch_size={data.batch_size or '...'}"]
        if isinstance(data.sampler, SequentialSampler):
            same.append("shuffle=False")
        if data.drop_last:
            same.append("drop_last=True")
        if data.collate_fn is not default_collate and data.batch_size:
            same.append("collate_fn=loader.collate_fn")
        if data.num_workers:
            same.append(f"workers={data.num_workers}")
        raise ConfigError(
            f"{expected} a DataLoader, which cannot make a batch again; use "
            f"npp.from_dataset(loader.dataset, {', '.join(same)})"
        )
    if isinstance(data, Dataset) and not callable(data):
        raise ConfigError(
            f"{expected} the Dataset {type(data).__name__}; use npp.from_dataset(dataset, "
            f"batch_size=...)"
        )
    if not callable(data):
        raise ConfigError(f"{expected} {type(data).__name__}; {_RECIPE}")


def check_batch(workload: Workload) -> None:
    """Check that the first batch is reproducible and has every field of the space and of the loss.

    It is made in a separate process, so that the stages do not share resources that the data open.

    Raises:
        ConfigError: if a check fails, if the data raise an error, or if the loss does not support
            the recipe's label smoothing.
    """
    _ = workload.objective
    definition, space = workload.definition, workload.space
    name, call = definition.data.get("name", ""), f"data({definition.seed}, 0)"
    check_is_data(workload.data, f"data {name}")
    check_items(workload.data, name, definition.seed)

    def check() -> None:
        with (
            deterministic_torch(definition.recipe.threads),
            users_code(f"data {name}: expected a batch from {call}, found"),
        ):
            batch = workload.data(definition.seed, 0)
            if not isinstance(batch, Mapping) or not all(isinstance(key, str) for key in batch):
                raise ConfigError(
                    f"data {name}: expected a dict of tensors by name from {call}, "
                    f"found {type(batch).__name__}"
                )
            before = field_digests(batch)
            again = field_digests(workload.data(definition.seed, 0))
        if field := _first_other(before, again):
            raise ConfigError(
                f"data {name}: expected the same batch whenever {call} is called, found another "
                f"{field!r} the second time; {_RECIPE}"
            )
        needed = [field for block in range(len(space)) for field in space.fields(block)]
        if workload.is_trained:
            needed += workload.loss_fields
            if definition.recipe.steps.weighs_items:
                needed.append(workload.target_field)
        for field in needed:
            workload.field(batch, field, 0)

    def checked(_: Callable[[], None]) -> dict[str, Any]:
        in_own_thread(definition.recipe.threads, check)
        return {}

    if current_process().daemon:  # daemons may not start processes
        check()
    else:
        done_apart(checked, f"data {name}", _BATCH_SECONDS)


def first_digests(workload: Workload) -> dict[str, str]:
    """Return 16 hex digits for each field of the first batch."""
    return field_digests(first_batch(workload))


def check_same_data(
    directory: RunDirectory, workload: Workload, manifest: Mapping[str, Any]
) -> None:
    """Check that the first batch is the one in the run's manifest, if recorded."""
    recorded = (manifest.get("batches") or {}).get("first")
    if recorded and (field := _first_other(recorded, first_digests(workload))):
        raise ConfigError(
            f"{directory.path} was trained on other data: expected a first batch with the "
            f"{field!r} that it began with, found another; resume it with its own data, or choose "
            f"a new --run-dir"
        )


def check_cut_batch(directory: RunDirectory, workload: Workload, cut: int) -> None:
    """Check that the last batch before a cut is the one that was trained on, if recorded."""
    try:
        last = read_losses(directory.losses, cut)[-1]
    except (LogError, IndexError):  # damaged losses are reported where they are needed
        return
    definition = workload.definition
    number = definition.recipe.steps.batch(last.sequence_id)
    if not last.beside.batch:
        return
    batch = batch_apart(workload.data, definition.seed, number, definition.recipe.threads)
    if short_digest(batch) != last.beside.batch:
        raise ConfigError(
            f"{directory.path}: expected batch {number} as it was trained on before, found another "
            f"from data({definition.seed}, {number}); {_RECIPE}"
        )


def last_batch_note(directory: RunDirectory, workload: Workload, end: int) -> str | None:
    """Return a warning if the last batch of a finished run differs when it is made again."""
    try:
        if workload.is_trained:
            check_cut_batch(directory, workload, end)
    except ConfigError as error:
        return f"{error}; what was trained, no resume and no plain loop has again"
    except Exception:  # a finished run must not fail because a batch cannot be made again
        return None
    return None


def _first_other(expected: Mapping[str, str], found: Mapping[str, str]) -> str | None:
    """Return the first name, in alphabetical order, whose values differ."""
    names = sorted(expected.keys() | found.keys())
    return next((each for each in names if expected.get(each) != found.get(each)), None)
