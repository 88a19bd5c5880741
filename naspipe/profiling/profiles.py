"""Measure the quick profile of a space's layers in other processes, and cache such profiles."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext, suppress
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import msgpack
import torch

from naspipe.checks.sketched import sketches, without_addresses
from naspipe.config.blocks import Elastic
from naspipe.config.errors import ConfigError, StageFailedError, TransportError
from naspipe.config.space import Space
from naspipe.config.text import parse_json
from naspipe.config.user_code import full_name, users_traceback
from naspipe.data.cache import default_root
from naspipe.jobs.batches_apart import first_batch
from naspipe.jobs.workload import Workload
from naspipe.machine.cuda import start_cuda
from naspipe.machine.determinism import describe_environment, deterministic_torch
from naspipe.machine.forking import (
    FORK,
    SLOW_SECONDS,
    calm_collector,
    check_fit_for_forking,
    end_all,
    in_own_thread,
    kept_heap,
    obituary,
    quiet_fork,
)
from naspipe.plan.costs import CostTable, LayerCost, first_of_kind, mean_costs
from naspipe.profiling.probes import ProbeError, refusing
from naspipe.profiling.profiler import profile
from naspipe.store.files import write_json

_ALL = "the profile of its layers"


def profile_apart(
    workload: Workload,
    timeout_seconds: float,
    device: str = "cpu",
    copies: int = 1,
    say: Callable[[str], None] | None = None,
    expected: str = "",
) -> CostTable:
    """Run the quick profile in other processes, so that this process can still be forked.

    Processes that compute at the same time share caches and memory bandwidth, and each is slower
    than one alone. Therefore several copies of the profile run concurrently.

    Args:
        workload: the workload whose layers are measured.
        timeout_seconds: time limit for the whole call.
        device: device of the computation.
        copies: number of processes that measure concurrently; the result is their mean.
        say: called with a progress line if the profile takes more than a second.
        expected: description of valid layers, loss and data, if their errors are user errors.

    Raises:
        StageFailedError: if a layer, the loss or the data raises; with ``expected``, this is a
            ConfigError.
        ConfigError: if a layer, the loss or the data is invalid.
        TransportError: if the profile exceeds the time limit.
    """
    check_fit_for_forking(device)
    deadline = time.monotonic() + timeout_seconds
    with ExitStack() as stack, quiet_fork():
        started = []
        for _ in range(copies):
            receiver, sender = FORK.Pipe(duplex=False)
            stack.enter_context(receiver)
            given = (workload, device, expected, sender)
            process = FORK.Process(target=_profile_main, args=given, name="naspipe-profile")
            process.start()
            stack.callback(end_all, [process])
            sender.close()
            started.append((process, receiver))
        if say is not None and not started[0][1].poll(min(SLOW_SECONDS, timeout_seconds)):
            blocks = workload.space.blocks
            kinds = set(first_of_kind(workload.space))  # one of several equal blocks is measured
            say(f"profiling {sum(blocks[kind].num_options for kind in kinds)} layers")
        return mean_costs([_profile_of(*each, deadline) for each in started])


def _profile_of(process: Any, receiver: Any, deadline: float) -> CostTable:
    try:
        if not receiver.poll(max(0.0, deadline - time.monotonic())):
            raise TransportError("the profile took longer than timeout_seconds allows")
        answer = msgpack.unpackb(receiver.recv_bytes())
    except EOFError:
        raise StageFailedError(0, _ALL, obituary(process)) from None
    if "refusal" in answer:
        raise ConfigError(answer["refusal"])
    if "failure" in answer:
        raise StageFailedError(0, answer["task"], answer["failure"])
    return CostTable(
        {(block, candidate): LayerCost(*cost) for block, candidate, cost in answer["costs"]},
        {(block, candidate): why for block, candidate, why in answer["whole"]},
    )


def _profile_main(workload: Workload, device: str, expected: str, sender: Any) -> None:
    answer: dict[str, Any]
    threads = workload.definition.recipe.threads

    def measure() -> CostTable:
        with deterministic_torch(threads), calm_collector(), kept_heap():
            if device != "cpu":
                start_cuda(torch.device(device))
            return profile(workload, device=device)

    try:
        with refusing(workload.space.name, expected) if expected else nullcontext():
            table = in_own_thread(threads, measure)
        costs = [[*key, list(cost)] for key, cost in table.costs.items()]
        answer = {"costs": costs, "whole": [[*key, why] for key, why in table.whole.items()]}
    except ConfigError as error:
        answer = {"refusal": str(error)}
    except ProbeError as error:
        answer = {"task": str(error), "failure": users_traceback(error.cause)}
    except Exception as error:
        answer = {"task": _ALL, "failure": users_traceback(error)}
    sender.send_bytes(msgpack.packb(answer))


FORMAT = 2
"""Version of the file format and of the measurements; files of other versions are ignored."""

_LARGEST = 1 << 62


class ProfileCache:
    """The cached costs of one workload, ``ROOT/FINGERPRINT.json``.

    ``ROOT`` is ``naspipe/profiles`` in the user's cache directory by default.
    """

    def __init__(self, workload: Workload, root: Path | None = None, device: str = "cpu") -> None:
        self._workload = workload
        self._root = default_root().with_name("profiles") if root is None else root
        self._device = device

    @cached_property
    def path(self) -> Path:
        """Path of the file, which may not exist."""
        return self._root / f"{fingerprint(self._workload, self._device)}.json"

    def read(self) -> CostTable | None:
        """Return the costs; None if the file is missing, damaged or of another format."""
        try:
            record = parse_json(self.path.read_text("utf-8"))
        except (OSError, ValueError):
            return None
        return _table(record, self._workload.space)

    def write(self, table: CostTable) -> bool:
        """Store the costs; return False, without an error, if the cache cannot be written."""
        with suppress(OSError):
            self._root.mkdir(parents=True, exist_ok=True)
            write_json(self.path, _record(table, self._workload.space))
            return True
        return False


def cached_profile(
    workload: Workload,
    measure: Callable[[], CostTable],
    root: Path | None = None,
    device: str = "cpu",
) -> CostTable:
    """Return the workload's costs from the cache, or measure and store them.

    Raises:
        ConfigError: if a factory makes no module, or batch 0 is invalid.
    """
    cache = ProfileCache(workload, root, device)
    table = cache.read()
    if table is None:
        table = measure()
        cache.write(table)
    return table


def fingerprint(workload: Workload, device: str = "cpu") -> str:
    """Return a hash of everything that costs depend on: layers, batch, recipe, software, processor.

    Layers are identified only by the module's repr and the shapes of its tensors. After changing
    what a forward computes, measure again (``naspipe profile --fresh``).
    """
    space, definition = workload.space, workload.definition
    recipe, batch = definition.recipe, first_batch(workload)
    environment = describe_environment()
    twins = first_of_kind(space)
    kinds: dict[int, list[object]] = {block: [] for block in sorted(set(twins))}
    for block, _, module in sketches(space):
        named = chain(module.named_parameters(), module.named_buffers())
        tensors = [(name, *_form(tensor)) for name, tensor in named]
        kinds[block].append((without_addresses(repr(module)), tensors))
    for block, found in kinds.items():
        if isinstance(own := space.blocks[block], Elastic):
            found += [sorted(own.settings.items()), own.apply and full_name(own.apply), own.step]
    names = ("clip_layer_norm", "ema", "label_smoothing")
    more_work = [name for name in names if getattr(recipe, name)]
    role: list[object] = []
    if not workload.is_trained:
        role = ["forward", workload.runs_in_training_mode, workload.follows is not None]
    parts = [
        FORMAT,
        device,
        environment["hardware"],
        environment["software"]["torch"],
        [recipe.optimizer, sorted(recipe.optimizer_options.items()), *more_work],
        *map(str, recipe.groups),
        [recipe.precision, recipe.threads, workload.recompute],
        definition.loss,
        *role,
        sorted((name, *_form(batch[name])) for name in batch if torch.is_tensor(batch[name])),
        [
            (twin, str(block.rule), block.fields)
            for twin, block in zip(twins, space.blocks, strict=True)
        ],
        [*kinds.values()],
    ]
    return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()


def _form(tensor: torch.Tensor) -> tuple[object, ...]:
    return tuple(tensor.shape), str(tensor.dtype)


def _record(table: CostTable, space: Space) -> dict[str, Any]:
    """Return one list per kind of block with candidate and cost of every measured layer."""
    twins = sorted(set(first_of_kind(space)))
    rows: dict[int, list[list[int]]] = {twin: [] for twin in twins}
    for (block, candidate), cost in sorted(table.costs.items()):
        if block in rows:
            rows[block].append([candidate, *cost])
    return {
        "format": FORMAT,
        "space": space.name,
        "columns": ["candidate", *LayerCost._fields],
        "layers": {str(block): rows[block] for block in twins},
        "whole": [[*place, why] for place, why in sorted(table.whole.items()) if place[0] in rows],
    }


def _table(record: object, space: Space) -> CostTable | None:
    """Decode the costs in a file; None if a kind is missing or anything is unknown."""
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        return None
    rows = record.get("layers")
    twins = first_of_kind(space)
    if not isinstance(rows, dict) or rows.keys() != {str(twin) for twin in twins}:
        return None
    costs: dict[int, Mapping[int, LayerCost]] = {}
    for twin in set(twins):
        known = _costs(rows[str(twin)], space.blocks[twin].num_options)
        if not known:
            return None
        costs[twin] = known
    whole: dict[tuple[int, int], str] = {}
    reasons = record.get("whole", [])
    for row in reasons if isinstance(reasons, list) else ():
        if isinstance(row, list) and list(map(type, row)) == [int, int, str]:
            whole[row[0], row[1]] = row[2]
    return CostTable(
        {
            (block, candidate): cost
            for block, twin in enumerate(twins)
            for candidate, cost in costs[twin].items()
        },
        {
            (block, candidate): whole[twin, candidate]
            for block, twin in enumerate(twins)
            for candidate in costs[twin]
            if (twin, candidate) in whole
        },
    )


def _costs(rows: object, num_candidates: int) -> dict[int, LayerCost] | None:
    """Return costs by candidate; None if a row does not have the form of :func:`_record`."""
    if not isinstance(rows, list):
        return None
    costs: dict[int, LayerCost] = {}
    for row in rows:
        if not isinstance(row, list) or len(row) != 1 + len(LayerCost._fields):
            return None
        if not all(type(value) is int and 0 <= value < _LARGEST for value in row):
            return None
        if row[0] >= num_candidates or row[0] in costs:
            return None
        costs[row[0]] = LayerCost(*row[1:])
    return costs
