"""A stage's device and its way to the other stages, as the execution asks for them."""

from __future__ import annotations

import torch

from naspipe.core.config import Execution
from naspipe.core.ids import StageId
from naspipe.runtime.devices.cuda_device import start_cuda
from naspipe.runtime.devices.staging import Staging
from naspipe.runtime.memory.placement import device_name
from naspipe.runtime.wire.endpoints import Endpoints
from naspipe.runtime.wire.ports import Transport
from naspipe.runtime.wire.transport import ZmqTransport
from naspipe.runtime.wire.wakeup import Wakeup


def start_device(execution: Execution, stage: StageId) -> str:
    """The name of the stage's device, started in this process where it is a GPU.

    Raises:
        ConfigError: when CUDA cannot be started here.
    """
    name = device_name(execution.hardware.device, stage)
    if name != "cpu":
        start_cuda(torch.device(name))
    return name


def connect(
    execution: Execution, stage: StageId, endpoints: Endpoints, wakeup: Wakeup
) -> Transport:
    """The way to the other stages; starts the stage's device.

    Raises:
        ConfigError: when CUDA cannot be started here.
    """
    device = torch.device(start_device(execution, stage))
    sockets = ZmqTransport(stage, endpoints, wakeup, Staging(device))
    if execution.wire.data_path == "zmq" or execution.pipeline.stages == 1:
        return sockets
    from naspipe.runtime.wire.nccl_path import NcclTransport, Pairs

    seconds = execution.watch.timeout_seconds
    pairs = Pairs(stage, execution.pipeline.stages, device, endpoints.directory, seconds)
    return NcclTransport(sockets, pairs)
