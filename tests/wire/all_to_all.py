"""Processes that all send to one another at once, over whatever way they open."""

from __future__ import annotations

import multiprocessing
import traceback
from contextlib import ExitStack

import torch

from naspipe.config.ids import FIRST_STREAM, SequenceId, StageId
from naspipe.engine.events import Task, TaskKind
from naspipe.wire.endpoints import ipc_endpoints
from naspipe.wire.messages import InputMessage
from tests.oracle import bits

STAGES = 3
ROUNDS = 4
FORK = multiprocessing.get_context("fork")


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


def check(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert (one is None) == (other is None)
        if other is not None:
            assert bits(one) == bits(other) and one.stride() == other.stride()
            assert one.requires_grad == other.requires_grad


def stage_main(stage, endpoints, open_transport, pipe):
    """Send to both others before anything is received, then take what they sent."""
    try:
        others = [other for other in range(STAGES) if other != stage]
        with ExitStack() as stack:
            transport = stack.enter_context(open_transport(StageId(stage), endpoints, stack))
            for number in range(ROUNDS):
                for other in others:
                    sent = tensors(stage, other, number)
                    transport.send(other, InputMessage(task(stage * 10 + number, other), (), sent))
            for _ in range(ROUNDS * len(others)):
                while (message := transport.receive(60.0)) is None:
                    """Somebody has ended, which says nothing of the others."""
                sender, number = divmod(message.task.sequence_id, 10)
                check(message.tensors, tensors(sender, stage, number))
            pipe.send_bytes(b"")
            pipe.recv_bytes()  # nobody leaves before all have received
    except BaseException:
        pipe.send_bytes(traceback.format_exc().encode())


def run(directory, open_transport):
    """Have them all done; ``open_transport(stage, endpoints, stack)`` is called in each."""
    endpoints = ipc_endpoints(directory, STAGES)
    pipes, processes = [], []
    for stage in range(STAGES):
        ours, theirs = FORK.Pipe()
        process = FORK.Process(target=stage_main, args=(stage, endpoints, open_transport, theirs))
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
