"""The quick profile of a space's layers, in processes of their own."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from typing import Any

import msgpack
import torch

from naspipe.config.errors import ConfigError, StageFailedError, TransportError
from naspipe.config.user_code import users_traceback
from naspipe.planning.cost import CostTable, LayerCost, first_of_kind, mean_costs
from naspipe.runtime.devices.cuda_device import start_cuda
from naspipe.runtime.devices.determinism import deterministic_torch
from naspipe.runtime.forking.apart import SLOW_SECONDS
from naspipe.runtime.forking.fitness import check_fit_for_forking
from naspipe.runtime.forking.fork import FORK, end_all, obituary, quiet_fork
from naspipe.runtime.forking.own_thread import in_own_thread
from naspipe.runtime.jobs.workload import Workload
from naspipe.runtime.measuring.probes import ProbeError, refusing
from naspipe.runtime.measuring.profiler import profile
from naspipe.runtime.memory.garbage import calm_collector
from naspipe.runtime.memory.heap import kept_heap

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
