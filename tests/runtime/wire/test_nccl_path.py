"""The second data path, over gloo in host memory: the same code but for NCCL itself."""

from __future__ import annotations

import multiprocessing
import traceback

import pytest
import torch

from naspipe.core.errors import TransportError
from naspipe.core.ids import FIRST_STREAM, SequenceId, StageId
from naspipe.core.task import Task, TaskKind
from naspipe.runtime.wire import nccl_path
from naspipe.runtime.wire.endpoints import ipc_endpoints
from naspipe.runtime.wire.messages import InputMessage, announcement_frames, read_message
from naspipe.runtime.wire.nccl_path import NcclTransport, Pairs, ordered_pairs
from naspipe.runtime.wire.transport import ZmqTransport
from naspipe.runtime.wire.wakeup import Wakeup
from tests.oracle import bits

STAGES = 3
ROUNDS = 4
FORK = multiprocessing.get_context("fork")
CPU = torch.device("cpu")


def task(sequence_id, stage):
    number, place = SequenceId(sequence_id), StageId(stage)
    return Task(FIRST_STREAM, number, TaskKind.FORWARD, place)


def tensors(sender, receiver, number):
    """What one stage sends to another: odd strides, an absent one, an empty one."""
    draw = torch.Generator().manual_seed(sender * 100 + receiver * 10 + number)
    base = torch.randn(2, 3, 4, 5, generator=draw)
    return (
        base.contiguous(memory_format=torch.channels_last).requires_grad_(),
        None,
        torch.zeros(0, 4),
        base.flatten()[3:50].to(torch.bfloat16),
    )


def stage_main(stage, directory, pipe):
    """Send to both others before anything is received, then take what they sent."""
    try:
        nccl_path.BACKEND = "gloo"
        endpoints = ipc_endpoints(directory, STAGES)
        others = [other for other in range(STAGES) if other != stage]
        with Wakeup() as wakeup:
            inner = ZmqTransport(StageId(stage), endpoints, wakeup)
            pairs = Pairs(StageId(stage), STAGES, CPU, directory, 60.0)
            with NcclTransport(inner, pairs) as transport:
                for number in range(ROUNDS):
                    for other in others:
                        sent = tensors(stage, other, number)
                        transport.send(
                            other, InputMessage(task(stage * 10 + number, other), (), sent)
                        )
                for _ in range(ROUNDS * len(others)):
                    message = transport.receive(60.0)
                    assert message is not None, "nothing arrived"
                    sender, number = divmod(message.task.sequence_id, 10)
                    check(message.tensors, tensors(sender, stage, number))
                pipe.send_bytes(b"")
                pipe.recv_bytes()  # nobody leaves before all have received
    except BaseException:
        pipe.send_bytes(traceback.format_exc().encode())


def check(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert (one is None) == (other is None)
        if other is not None:
            assert bits(one) == bits(other) and one.stride() == other.stride()
            assert one.requires_grad == other.requires_grad


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_every_stage_sends_to_every_other_at_once(tmp_path):
    pipes, processes = [], []
    for stage in range(STAGES):
        ours, theirs = FORK.Pipe()
        process = FORK.Process(target=stage_main, args=(stage, tmp_path, theirs))
        process.start()
        pipes.append(ours)
        processes.append(process)
    try:
        for stage, pipe in enumerate(pipes):
            assert pipe.poll(60), f"stage {stage} says nothing"
            assert pipe.recv_bytes().decode() == ""
        for pipe in pipes:
            pipe.send_bytes(b"")
        for process in processes:
            process.join(30)
            assert process.exitcode == 0
    finally:
        for process in processes:
            process.kill()
            process.join()
            process.close()


def test_pairs_are_opened_in_one_order_by_all():
    assert ordered_pairs(1) == []
    assert ordered_pairs(3) == [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]


def test_an_announcement_says_all_but_the_bytes():
    sent = tensors(0, 1, 0)
    (header,) = announcement_frames(StageId(2), InputMessage(task(7, 1), (task(8, 1),), sent))
    found = read_message(header, [])
    assert (found.sender, found.task, found.upcoming) == (2, task(7, 1), (task(8, 1),))
    assert [entry and entry[0] for entry in found.entries] == [
        "float32", None, "float32", "bfloat16",
    ]  # fmt: skip


def test_an_announcement_on_a_stage_without_the_path_is_refused(tmp_path):
    endpoints = ipc_endpoints(tmp_path, 1)
    with Wakeup() as wakeup, ZmqTransport(StageId(0), endpoints, wakeup) as transport:
        transport.announce(0, InputMessage(task(3, 0), (), (torch.zeros(2),)))
        with pytest.raises(TransportError, match="a way that is not open here"):
            transport.receive(10.0)
