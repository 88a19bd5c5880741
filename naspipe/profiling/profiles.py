"""The quick profile of a space's layers, in processes of their own."""

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
from torch import nn

from naspipe.checks.sketched import sketch, without_addresses
from naspipe.config.errors import ConfigError, StageFailedError, TransportError
from naspipe.config.recipe import Recipe
from naspipe.config.space import Elastic, Space
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
    """The quick profile, in a process of its own, so that this one stays fit for forking.

    Processes that compute at once share caches and memory's bandwidth, and each of them is slower
    than one alone. So several copies of the profile measure what layers take side by side.

    Args:
        workload: whose layers are measured.
        timeout_seconds: for all of it.
        device: where they compute.
        copies: how many processes measure at once; the result is their mean.
        say: told in a line what is waited for, where it takes more than a second.
        expected: where layers, the loss and the data are the user's to mend: what they should be.

    Raises:
        StageFailedError: when a layer, the loss or the data raises; with ``expected`` that is a
            ConfigError.
        ConfigError: when one of them is not what it should be.
        TransportError: when the profile takes longer than the time-out.
    """
    check_fit_for_forking(device)
    deadline = time.monotonic() + timeout_seconds
    with ExitStack() as stack, quiet_fork():
        started = [_start_profile(workload, device, expected, stack) for _ in range(copies)]
        if say is not None and not started[0][1].poll(min(SLOW_SECONDS, timeout_seconds)):
            say(f"profiling {_num_layers(workload)} layers")
        return mean_costs([_profile_of(*each, deadline) for each in started])


def _num_layers(workload: Workload) -> int:
    """Of blocks that are alike only one is measured."""
    blocks = workload.space.blocks
    return sum(blocks[kind].num_options for kind in set(first_of_kind(workload.space)))


def _start_profile(
    workload: Workload, device: str, expected: str, stack: ExitStack
) -> tuple[Any, Any]:
    """A process that measures, and where its answer comes."""
    receiver, sender = FORK.Pipe(duplex=False)
    stack.enter_context(receiver)
    process = FORK.Process(
        target=_profile_main, args=(workload, device, expected, sender), name="naspipe-profile"
    )
    process.start()
    stack.callback(end_all, [process])
    sender.close()
    return process, receiver


def _profile_of(process: Any, receiver: Any, deadline: float) -> CostTable:
    try:
        if not receiver.poll(max(0.0, deadline - time.monotonic())):
            raise TransportError("the profile took longer than timeout_seconds allows")
        costs, whole, task, failure, refusal = msgpack.unpackb(receiver.recv_bytes())
    except EOFError:
        raise StageFailedError(0, _ALL, obituary(process)) from None
    if refusal:
        raise ConfigError(refusal)
    if failure:
        raise StageFailedError(0, task, failure)
    return CostTable(
        {(block, candidate): LayerCost(*cost) for block, candidate, cost in costs},
        {(block, candidate): why for block, candidate, why in whole},
    )


def _profiled(workload: Workload, device: str, threads: int) -> CostTable:
    with deterministic_torch(threads), calm_collector(), kept_heap():
        if device != "cpu":
            start_cuda(torch.device(device))
        return profile(workload, device=device)


def _profile_main(workload: Workload, device: str, expected: str, sender: Any) -> None:
    costs: list[Any] = []
    whole: list[Any] = []
    task, failure, refusal = _ALL, "", ""
    try:
        threads = workload.definition.recipe.threads
        name = workload.space.name
        with refusing(name, expected) if expected else nullcontext():
            table = in_own_thread(threads, lambda: _profiled(workload, device, threads))
        costs = [[*key, list(cost)] for key, cost in table.costs.items()]
        whole = [[*key, why] for key, why in table.whole.items()]
    except ConfigError as error:
        refusal = str(error)
    except ProbeError as error:
        task, failure = str(error), users_traceback(error.cause)
    except Exception as error:
        failure = users_traceback(error)
    sender.send_bytes(msgpack.packb([costs, whole, task, failure, refusal]))


FORMAT = 2
"""Of the file and of what is measured; a file of another format is measured anew."""

_LARGEST = 1 << 62


class ProfileCache:
    """The place of one workload's costs, ``ROOT/FINGERPRINT.json``.

    Args:
        workload: what was or will be measured.
        root: directory of all profiles; ``naspipe/profiles`` in the user's cache by default.
        device: where the layers compute.
    """

    def __init__(self, workload: Workload, root: Path | None = None, device: str = "cpu") -> None:
        self._workload = workload
        self._root = default_root().with_name("profiles") if root is None else root
        self._device = device

    @cached_property
    def path(self) -> Path:
        """The file, whether it is there or not."""
        return self._root / f"{fingerprint(self._workload, self._device)}.json"

    def read(self) -> CostTable | None:
        """The costs; None when there are none, or the file is damaged or of another format."""
        try:
            record = parse_json(self.path.read_text("utf-8"))
        except (OSError, ValueError):
            return None
        return _table(record, self._workload.space)

    def write(self, table: CostTable) -> bool:
        """Keep the costs; returns whether that was possible.

        A cache that cannot be written is no error: the costs are measured again next time.
        """
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
    """The workload's costs: those kept, or else those that ``measure`` returns, kept from now on.

    Raises:
        ConfigError: when a factory makes no module, or batch 0 is not what it should be.
    """
    cache = ProfileCache(workload, root, device)
    table = cache.read()
    if table is None:
        table = measure()
        cache.write(table)
    return table


def fingerprint(workload: Workload, device: str = "cpu") -> str:
    """A hash of what costs depend on: layers, batch, recipe, software and processor.

    Of a layer's code it knows no more than the module's repr and its tensors' shapes: who
    changes what a forward computes measures anew (``naspipe profile --fresh``).
    """
    space, definition = workload.space, workload.definition
    recipe, batch = definition.recipe, first_batch(workload)
    environment = describe_environment()
    twins = first_of_kind(space)
    parts = [
        FORMAT,
        device,
        environment["hardware"],
        environment["software"]["torch"],
        [recipe.optimizer, sorted(recipe.optimizer_options.items()), *_beside(recipe)],
        *map(str, recipe.groups),
        [recipe.precision, recipe.threads, workload.recompute],
        definition.loss,
        *_role(workload),
        sorted((name, *_form(batch[name])) for name in batch if torch.is_tensor(batch[name])),
        [
            (twin, str(block.rule), block.fields)
            for twin, block in zip(twins, space.blocks, strict=True)
        ],
        [_kind(space, twin) for twin in sorted(set(twins))],
    ]
    return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()


def _role(workload: Workload) -> list[object]:
    """What of a stream is computed, where that is not all."""
    if workload.is_trained:
        return []
    return ["forward", workload.runs_in_training_mode, workload.follows is not None]


def _beside(recipe: Recipe) -> list[str]:
    """What is done beside the forward, the backward and the optimizer's step."""
    names = ("clip_layer_norm", "ema", "label_smoothing")
    return [name for name in names if getattr(recipe, name)]


def _kind(space: Space, block: int) -> list[object]:
    own = space.blocks[block]
    found = [_described(sketch(space, block, number)) for number in range(len(own.candidates))]
    if isinstance(own, Elastic):
        found += [sorted(own.settings.items()), own.apply and full_name(own.apply), own.step]
    return found


def _described(module: nn.Module) -> object:
    tensors = chain(module.named_parameters(), module.named_buffers())
    return without_addresses(repr(module)), [(name, *_form(tensor)) for name, tensor in tensors]


def _form(tensor: torch.Tensor) -> tuple[object, ...]:
    return tuple(tensor.shape), str(tensor.dtype)


def _record(table: CostTable, space: Space) -> dict[str, Any]:
    """One list per kind: candidate and cost of every layer that was measured."""
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
    """The costs of a file's content; None unless it has every kind and nothing unknown."""
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
    whole = _reasons(record.get("whole", []))
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


def _reasons(rows: object) -> dict[tuple[int, int], str]:
    """Why backwards cannot be split, by kind and candidate; rows of another form are left out."""
    found: dict[tuple[int, int], str] = {}
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, list) and list(map(type, row)) == [int, int, str]:
            block, candidate, why = row
            found[block, candidate] = why
    return found


def _costs(rows: object, num_candidates: int) -> dict[int, LayerCost] | None:
    """By candidate; None when a row is not one that :func:`_record` makes."""
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
