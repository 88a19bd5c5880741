"""A stage's device and its way to the other stages, as the execution asks for them."""

from __future__ import annotations

from functools import partial

import torch

from naspipe.config.definition import Execution
from naspipe.config.errors import ConfigError
from naspipe.config.ids import WorkerId
from naspipe.runtime.devices.cuda_device import start_cuda
from naspipe.runtime.devices.staging import Staging
from naspipe.runtime.jobs.ports import PipelineJob
from naspipe.runtime.memory.placement import device_name
from naspipe.runtime.wire import device_rings
from naspipe.runtime.wire.device_rings import DeviceRings, DeviceTransport
from naspipe.runtime.wire.emulated_link import Link, LinkedTransport
from naspipe.runtime.wire.endpoints import Endpoints
from naspipe.runtime.wire.ports import Transport
from naspipe.runtime.wire.transport import ZmqTransport
from naspipe.runtime.wire.wakeup import Wakeup


def start_device(execution: Execution, worker: WorkerId) -> str:
    """The name of the stage's device, started in this process where it is a GPU.

    Raises:
        ConfigError: when CUDA cannot be started here.
    """
    name = device_name(execution.hardware.device, worker)
    if name != "cpu":
        start_cuda(torch.device(name))
    return name


def connect(job: PipelineJob, worker: WorkerId, endpoints: Endpoints, wakeup: Wakeup) -> Transport:
    """The way to the other workers; starts this one's device.

    Raises:
        ConfigError: when CUDA cannot be started here.
    """
    execution, count = job.execution, job.positions.num_workers
    device = torch.device(start_device(execution, worker))
    link = Link(execution.wire.link_bandwidth, execution.wire.link_latency)
    make = partial(LinkedTransport, link) if link.is_emulated else ZmqTransport
    staging = Staging(device)
    sockets = make(worker, endpoints, wakeup, staging)
    if execution.wire.data_path in ("shm", "zmq") or count == 1:
        return sockets
    seconds = execution.watch.timeout_seconds
    if execution.wire.data_path == "cuda_ipc":
        if endpoints.rings is None:
            raise ConfigError("data_path=cuda_ipc: expected stages of one host, over transport=ipc")
        memory = device_rings.MEMORY(device)
        rings = DeviceRings(worker, count, endpoints.rings, memory, staging)
        return DeviceTransport(sockets, rings, seconds)
    from naspipe.runtime.wire.nccl_path import NcclTransport, Pairs

    pairs = Pairs(worker, count, device, endpoints.directory, seconds)
    return NcclTransport(sockets, pairs)
