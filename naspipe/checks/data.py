"""What is asked of data before anything is written: a batch that can be made again, anywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
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


_RECIPE = (
    "make it from the seed and the number alone, as npp.from_dataset(dataset, batch_size) does"
)


_SECONDS = 86400.0
"""In which the first batch must be there."""


def check_is_data(data: object, what: str = "data") -> None:
    """Data must be a function of a seed and a number.

    Args:
        data: what was given.
        what: how the caller's argument is called.

    Raises:
        ConfigError: when it is not; for a ``DataLoader`` or a ``Dataset`` with what to write.
    """
    expected = f"{what}: expected a function of (seed, sequence_id), found"
    if isinstance(data, DataLoader):
        raise ConfigError(
            f"{expected} a DataLoader, which cannot make a batch again; use "
            f"npp.from_dataset(loader.dataset, {_arguments(data)})"
        )
    if isinstance(data, Dataset) and not callable(data):
        raise ConfigError(
            f"{expected} the Dataset {type(data).__name__}; use npp.from_dataset(dataset, "
            f"batch_size=...)"
        )
    if not callable(data):
        raise ConfigError(f"{expected} {type(data).__name__}; {_RECIPE}")


def _arguments(loader: DataLoader[Any]) -> str:
    """Those of ``from_dataset`` that do what a loader does."""
    found = [f"batch_size={loader.batch_size or '...'}"]
    if isinstance(loader.sampler, SequentialSampler):
        found.append("shuffle=False")
    if loader.drop_last:
        found.append("drop_last=True")
    if loader.collate_fn is not default_collate and loader.batch_size:
        found.append("collate_fn=loader.collate_fn")
    if loader.num_workers:
        found.append(f"workers={loader.num_workers}")
    return ", ".join(found)


def check_batch(workload: Workload) -> None:
    """The first batch must be the same twice, with every field of the space and of the loss.

    It is made in a process of its own: what the data open for it is not shared by the stages.

    Raises:
        ConfigError: when it is not, when the data raises, or when the loss cannot be smoothed
            as the recipe says.
    """
    _ = workload.objective
    definition = workload.definition
    name, call = definition.data.get("name", ""), f"data({definition.seed}, 0)"
    check_is_data(workload.data, f"data {name}")
    check_items(workload.data, name, definition.seed)
    if current_process().daemon:  # which may start no process
        _check_first(workload, name, call)
        return

    def check(_: Callable[[], None]) -> dict[str, Any]:
        threads = definition.recipe.threads
        in_own_thread(threads, lambda: _check_first(workload, name, call))
        return {}

    done_apart(check, f"data {name}", _SECONDS)


def _check_first(workload: Workload, name: str, call: str) -> None:
    space, definition = workload.space, workload.definition
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
    if field := _other(before, again):
        raise ConfigError(
            f"data {name}: expected the same batch whenever {call} is called, found another "
            f"{field!r} the second time; {_RECIPE}"
        )
    for block in range(len(space)):
        for field in space.fields(block):
            workload.field(batch, field, 0)
    needed = workload.loss_fields if workload.is_trained else ()
    if workload.is_trained and definition.recipe.steps.weighs_items:
        needed = (*needed, workload.target_field)
    for field in needed:
        workload.field(batch, field, 0)


def first_digests(workload: Workload) -> dict[str, str]:
    """Of each field of the first batch, 16 hex digits."""
    return field_digests(first_batch(workload))


def check_same_data(
    directory: RunDirectory, workload: Workload, manifest: Mapping[str, Any]
) -> None:
    """The first batch must be the one that a run began with, as far as its manifest says.

    Raises:
        ConfigError: when it is not.
    """
    recorded = (manifest.get("batches") or {}).get("first")
    if recorded and (field := _other(recorded, first_digests(workload))):
        raise ConfigError(
            f"{directory.path} was trained on other data: expected a first batch with the "
            f"{field!r} that it began with, found another; resume it with its own data, or choose "
            f"a new --run-dir"
        )


def check_cut_batch(directory: RunDirectory, workload: Workload, cut: int) -> None:
    """The last batch before a cut must be the one that was trained on, as far as that is recorded.

    Raises:
        ConfigError: when it is not.
    """
    try:
        last = read_losses(directory.losses, cut)[-1]
    except (LogError, IndexError):  # what is wrong with losses is said where they are needed
        return
    definition = workload.definition
    number = definition.recipe.steps.batch(last.sequence_id)
    if not last.beside.batch:
        return
    threads = definition.recipe.threads
    found = short_digest(batch_apart(workload.data, definition.seed, number, threads))
    if found != last.beside.batch:
        raise ConfigError(
            f"{directory.path}: expected batch {number} as it was trained on before, found another "
            f"from data({definition.seed}, {number}); {_RECIPE}"
        )


def last_batch_note(directory: RunDirectory, workload: Workload, end: int) -> str | None:
    """A line where the last batch of a finished run is made otherwise now; None where it is not."""
    if not workload.is_trained:
        return None
    try:
        check_cut_batch(directory, workload, end)
    except ConfigError as error:
        return f"{error}; what was trained, no resume and no plain loop has again"
    except Exception:  # what cannot be made again is no reason to lose a run
        return None
    return None


def _other(expected: Mapping[str, str], found: Mapping[str, str]) -> str | None:
    """The first field, by name, that is not the same."""
    for name in sorted(expected.keys() | found.keys()):
        if expected.get(name) != found.get(name):
            return name
    return None
