"""The driver of one stage of two; the other stage and the launcher are played."""

from __future__ import annotations

from collections import deque
from contextlib import ExitStack

import torch
from torch import nn

from naspipe.engine.admission import AdmissionWindow, Intake
from naspipe.engine.builder import build_controller
from naspipe.engine.events import TaskKind
from naspipe.store.checkpoints import CheckpointFolder
from naspipe.wire.messages import InputMessage
from naspipe.wire.transport import Sending
from naspipe.worker.blocks.compute import StageCompute
from naspipe.worker.checkpoints.checkpointer import Checkpointer, CheckpointStream
from naspipe.worker.driver import StageDriver
from naspipe.worker.job import OnePipeline
from naspipe.worker.placement import Placement
from tests.keyed_draws import keyed_seed
from tests.oracle import bits
from tests.worker.checkpoints.bench import Log, held
from tests.worker.small_parts import (
    CHAINS,
    SEED,
    batches,
    plain_loop,
    planned,
    space,
    workload,
)
from tests.worker.tasks import task

FORWARD, BACKWARD = TaskKind.FORWARD, TaskKind.BACKWARD


class Script:
    """The other stages and the launcher: what they say, and what they were told."""

    def __init__(self, *messages):
        self.messages, self.sent = deque(messages), []

    def receive(self, timeout_seconds):
        """What comes next; a function is asked for it when its turn has come."""
        if not self.messages:
            return None
        message = self.messages[0]() if callable(self.messages[0]) else self.messages[0]
        if message is not None:
            self.messages.popleft()
        return message

    def send(self, worker, message):
        self.sent.append((worker, message))
        return Sending(0, lambda: True)


class Bench:
    """The driver of stage 1, and all that it works on; a context manager."""

    def __init__(
        self, path, script, *, known=4, window=4, every=0, work=None, levels=None, **options
    ):
        self.compute = StageCompute([work or workload()], Placement(torch.device("cpu")))
        self.script, self.told, self.reported = script, [], []
        self.log, self.folder = Log(path / "log"), CheckpointFolder(path / "checkpoints")
        stream = CheckpointStream(space(), self.folder, self.compute.stores[0], None, self.log)
        self.checkpointer = Checkpointer(1, 0, [stream], every, self, lambda: None)
        order = "latest-start" if levels else "paper"
        controller = build_controller(1, [space().rules], order=order)
        subnets = [each._replace(priorities=levels) for each in planned(known)]
        intake = Intake(AdmissionWindow(window, len(CHAINS)), subnets)
        parts = {
            "compute": self.compute,
            "stores": self.compute.stores,
            "placement": self.compute.placement,
            "updates": self.compute.updates,
            "checkpointer": self.checkpointer,
            "timeout_seconds": 0.2,
            **options,
        }
        self.driver = StageDriver(
            1, controller, [intake], transport=script, positions=OnePipeline(2), sink=self, **parts
        )

    def report(self, kind, body):
        """As the checkpointer's reporter."""
        self.reported.append(body)

    def access(self, access):
        self.told.append(("access", access.layer.block, access.sequence_id, access.kind.name))

    def result(self, stream, sequence_id, result):
        self.told.append(("loss", sequence_id, bits(result.value)))

    def event(self, event):
        self.told.append(("event", type(event).__name__))

    def held(self, admitted):
        self.told.append(("held", list(admitted)))

    def of(self, kind):
        return [each[1:] for each in self.told if each[0] == kind]

    def __enter__(self):
        self.stack = ExitStack()
        self.stack.enter_context(self.log.file)
        self.stack.enter_context(self.checkpointer)
        return self

    def __exit__(self, *exception):
        self.stack.close()


class FirstStage:
    """Stage 0, in plain PyTorch; its layers never learn."""

    def __init__(self):
        self.oracle = plain_loop(0)
        self.inputs, self.gradients = {}, {}

    def input(self, y, upcoming=()):
        """The message with the input of subnet ``y``."""
        x = torch.tanh(batches(SEED, y)["input"] @ torch.ones(4, 6)).requires_grad_()
        self.inputs[y] = x
        return InputMessage(task(y, FORWARD, 1), tuple(upcoming), (x.detach().requires_grad_(),))

    def expected(self, subnets=4):
        """Losses, gradients of the inputs, and the layers of stage 1 afterwards."""
        losses, gradients = [], []
        for y in range(subnets):
            chain = CHAINS[y]
            modules = [self.oracle.layer(block, chain[block]) for block in (2, 3)]
            x = self.inputs[y].detach().clone().requires_grad_()
            state = x
            for block, module in zip((2, 3), modules, strict=True):
                torch.manual_seed(self.seed(y, block))
                state = module(state.view_as(state))
            loss = nn.functional.cross_entropy(state, batches(SEED, y)["target"])
            loss.backward()
            losses.append(bits(loss))
            gradients.append(bits(x.grad))
            self.oracle.write(y, dict(zip([(b, chain[b]) for b in (2, 3)], modules, strict=True)))
        return losses, gradients

    @staticmethod
    def seed(y, block):
        return keyed_seed(f"{SEED}/{y}/{block}/0")


def state_of(bench):
    return {
        (used.block, used.candidate): held(stored)
        for used, stored in bench.compute.stores[0].items()
    }


def assert_as_plain(bench, first, subnets=4):
    """The loop's losses, the gradients that go back, and the layers of stage 1."""
    losses, gradients = first.expected(subnets)
    assert bench.of("loss") == [(y, loss) for y, loss in enumerate(losses)]
    sent = {m.task.sequence_id: (worker, m) for worker, m in bench.script.sent}
    for y, gradient in enumerate(gradients):
        worker, message = sent[y]
        assert worker == 0 and message.task == task(y, BACKWARD, 0)
        assert [bits(tensor) for tensor in message.tensors] == [gradient]
    expected = {}
    for (block, candidate, name), value in first.oracle.tensors().items():
        expected.setdefault((block, candidate), {})[name] = bits(value)
    assert state_of(bench) == expected
