"""The loop of a worker process: it carries out a controller's commands with tensors and messages.

Theory of operation
-------------------

One thread does everything that touches tensors or the controller. Other threads only move bytes:
the transport, copies between host and device, data for late fields, checkpoint files. This loop
collects their results and turns each of them into an event with a time.

**One turn of the loop.** If a run of blocks has been commanded, ``_step`` computes its next block.
If not, ``_wait`` waits for a message or for a copy, and does idle work (making layers, capturing
layers of a checkpoint) until one arrives. Both then handle everything that has arrived, without
waiting. Everything that happens is reported to the controller as an event (``_tell``), and the
commands that it returns are carried out at once, in order. A command may cause further events;
they are queued after the present one, so the controller is never called reentrantly.

**Invariants.**

- Events are reported in the order in which they happened on this stage, and each command is carried
  out before the next event is reported. A log of the events therefore reproduces the run.
- A block is never interrupted. Messages are handled between two blocks only if the controller must
  know of finished blocks immediately (``follows_blocks``); otherwise after the run of blocks.
- Consecutive updates are applied together, which lets optimizers step several layers at once.
- Every wait ends with a message, a finished copy, or a ``TransportError`` after
  ``timeout_seconds``, which names the oldest work and what it is waiting for.
- If the device runs out of memory, everything that can be recomputed is freed and the block is
  retried once. A block changes nothing before it has succeeded.

**Start and end.** A resumed run first reports to the controller the versions that the checkpoint
holds. A stage ends when all subnets are retired and no other stage is waiting for one of its
layers. To stop early, the launcher asks all stages to *hold*, so that they admit no more subnets
and report how many they have admitted. It then sends a cut that no stage has passed, and each stage
finishes the subnets before the cut.

**What was tried and rejected.** A separate thread for messages would have to share the controller,
and the order of events could not be reproduced. Writing each layer immediately after its backward
delays the gradients that the previous stage is waiting for, so outputs are sent first.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TypeVar, cast

import torch

from naspipe.config.errors import InvariantError, TransportError
from naspipe.config.ids import LayerId, SequenceId, StageId, StreamId, Version
from naspipe.config.steps import ONE_PASS, Steps
from naspipe.config.wiring import CREDIT, PLAIN, Wiring
from naspipe.engine.admission import Intake
from naspipe.engine.commands import (
    CaptureLayer,
    Command,
    Contribute,
    DropVersion,
    EvictLayer,
    FinishCut,
    JoinSum,
    LoadLayer,
    PushVersion,
    RecordAccess,
    RequestField,
    RetireSubnet,
    RunTask,
    SaveLayer,
    SendOutput,
    WriteLayer,
)
from naspipe.engine.controller import StageController
from naspipe.engine.events import (
    BlockFinished,
    ContributionArrived,
    CutAdmitted,
    Event,
    InputArrived,
    Planned,
    StageIdle,
    StreamResumed,
    SubnetAdmitted,
    Task,
    WriteFinished,
)
from naspipe.jobs.ports import Positions
from naspipe.wire.messages import (
    HOLD,
    ContributionMessage,
    ControlMessage,
    InputMessage,
    Message,
    SubnetsMessage,
    VersionMessage,
)
from naspipe.wire.ports import Transport
from naspipe.worker.blocks.ports import BlockCompute
from naspipe.worker.blocks.updates import StageUpdates
from naspipe.worker.checkpoints.checkpointer import Checkpointer
from naspipe.worker.late_fields import LateFields
from naspipe.worker.layer_exchange import LayerExchange
from naspipe.worker.layers.layer_store import LayerStore
from naspipe.worker.placement import Placement
from naspipe.worker.stage_files import StageSink

Part = TypeVar("Part")


def require(part: Part | None, reason: object) -> Part:
    """Return ``part``, which only some stages have.

    Raises:
        InvariantError: if this stage lacks the part; ``reason`` is what requires it.
    """
    if part is None:
        raise InvariantError(f"{reason}: this stage trains nothing and waits for nothing")
    return part


class StageDriver:
    """The loop of one stage: receive messages, compute blocks, send outputs and apply updates.

    Args:
        stage: the ID of this stage.
        controller: makes every decision.
        intakes: decides for each stream which subnets may be in flight.
        stores: the layers of each stream.
        positions: maps stages to workers.
        timeout_seconds: how long to wait for a message before giving up.
        updates: applies updates; None if nothing is trained.
        fields: batch fields that arrive later than their batch; None if there are none.
        digests: whether to hash the layer after every update.
        verified: sequence IDs below this are compared with a plain loop.
        wiring: how the streams are joined.
        steps: how passes form steps, in every stream.
        resumed: the streams that continue from a checkpoint.
    """

    def __init__(
        self,
        stage: StageId,
        controller: StageController,
        intakes: Sequence[Intake],
        *,
        compute: BlockCompute,
        stores: Sequence[LayerStore],
        placement: Placement,
        transport: Transport,
        positions: Positions,
        sink: StageSink,
        checkpointer: Checkpointer,
        timeout_seconds: float,
        updates: StageUpdates | None = None,
        fields: LateFields | None = None,
        digests: bool = False,
        verified: int = 0,
        wiring: Wiring = PLAIN,
        steps: Steps = ONE_PASS,
        resumed: Sequence[StreamResumed] = (),
    ) -> None:
        self._doing: tuple[object, LayerId | None] = ("start", None)
        self._stage = stage
        self._controller = controller
        self._intakes = tuple(intakes)
        self._compute, self._updates = compute, updates
        self._stores, self._placement = tuple(stores), placement
        self._transport, self._positions = transport, positions
        self._sink, self._checkpointer = sink, checkpointer
        self._fields = fields
        self._timeout_seconds = timeout_seconds
        self._digests, self._verified = digests, verified
        self._wiring, self._steps = wiring, steps
        self._resumed = resumed
        self._memory_retry = compute.memory_retry
        self._layers = LayerExchange(
            stores, placement, transport, positions, compute.memory_retry, updates
        )
        self._early: list[Message] = []  # for subnets that this stage does not know yet
        self._unadmitted: deque[Planned] = deque()
        self._is_held = False
        self._run: deque[tuple[Task, LayerId, Version, int]] = deque()
        self._computed: deque[BlockFinished] = deque()  # not yet reported to the controller
        self._events: deque[Event] = deque()
        self._unmade: deque[LayerId] = deque()
        """Layers that will be needed, to be created while the stage is idle."""
        self._asked: set[LayerId] = set()
        """Every layer that was ever in ``_unmade``. A stage that is never idle does not shorten
        ``_unmade``, so each layer is queued only once to keep the queue from growing."""

    @property
    def current(self) -> str:
        """Description of the current activity, for error reports."""
        what, layer = self._doing
        where = f" block {layer.block} (layer {self._compute.label(layer)})" if layer else ""
        return f"{what}{where}"

    @property
    def measured(self) -> dict[str, int]:
        """Bytes sent to other stages, and the number of retries after running out of memory."""
        return {**self._layers.measured, "memory_retries": self._memory_retry.retries}

    def finishing(self) -> None:
        self._doing = ("writing its layers", None)

    def run(self) -> None:
        """Run until every subnet is retired on this stage.

        Raises:
            TransportError: if nothing arrived within the time-out.
            DeviceFullError: if the device's memory is too small even after freeing what can be.
            Exception: any error raised by a layer, the loss or the data.
        """
        try:
            for event in self._resumed:
                self._tell(event)
            for intake in self._intakes:
                self._admit(intake.open())
            controller, intakes = self._controller, self._intakes
            while (
                self._run or controller.owes_layers or not all(each.is_finished for each in intakes)
            ):
                self._step() if self._run else self._wait()
            self._unmade.clear()  # no subnet needed these
            while self._has_idle_work:
                self._do_idle_work()
            self._hold()
            self._doing = ("writing its last checkpoint", None)
            self._checkpointer.drain()
        except torch.OutOfMemoryError as error:
            raise self._compute.explain_shortage(error, self.current) from error

    def _step(self) -> None:
        """Compute the next block; report finished blocks at once if the controller requires it."""
        access = task, layer, _, _ = self._run.popleft()
        self._doing = (task, layer)
        start_ns = time.monotonic_ns()
        result = self._memory_retry.attempt(lambda: self._compute.run_block(*access))
        if result is not None:
            self._sink.result(task.stream, task.sequence_id, result)
        self._computed.append(BlockFinished(time.monotonic_ns(), task, layer.block, start_ns))
        if not self._run or self._controller.follows_blocks:
            while self._computed:
                self._tell(self._computed.popleft())
            self._look()

    def _look(self) -> None:
        """Handle every message that has arrived and every copy that has finished."""
        self._take_arrivals()
        while message := self._transport.receive(0):
            self._accept(message)

    def _take_arrivals(self) -> bool:
        """Report loaded and saved layers and late fields. Return True if there were any."""
        self._checkpointer.report()
        arrived: list[Event] = list(self._placement.take_finished())
        if self._fields is not None:
            arrived += self._fields.take()
        for event in arrived:
            self._tell(event)
        return bool(arrived)

    def _wait(self) -> None:
        self._doing = ("waiting", None)
        deadline = time.monotonic() + self._timeout_seconds
        while not self._take_arrivals():
            left = 0.0 if self._has_idle_work else deadline - time.monotonic()
            until = min(max(0.0, left), self._placement.left_seconds)
            if message := self._transport.receive(until):
                self._accept(message)
                break
            if self._has_idle_work:
                self._do_idle_work()
            elif left <= 0:
                raise TransportError(
                    f"stage {self._stage}: nothing arrived for {self._timeout_seconds:g} s;"
                    f" oldest work: {'; '.join(self._controller.unfinished[:3])}"
                )
        self._look()

    @property
    def _has_idle_work(self) -> bool:
        return bool(self._unmade) or self._controller.is_idle_work

    def _do_idle_work(self) -> None:
        """Create one layer that will be needed, or let the controller capture one."""
        if self._unmade:
            layer = self._unmade.popleft()
            self._stores[layer.stream].prepare(layer)
        else:
            self._tell(StageIdle(time.monotonic_ns()))

    def _accept(self, message: Message) -> None:
        match message:
            case InputMessage((stream, y, *_)) | ContributionMessage(_, stream, y):
                if not self._intakes[stream].knows(y):
                    self._early.append(message)
                    return
                self._admit(self._intakes[stream].reach(y))
        match message:
            case InputMessage(task, upcoming, tensors, name):
                self._compute.accept(task, tensors, name)
                self._tell(InputArrived(time.monotonic_ns(), task, upcoming, name))
            case VersionMessage():
                self._tell(self._layers.take(message))
            case ContributionMessage():
                self._take_contribution(message)
            case SubnetsMessage(stream, first, planned):
                self._admit(self._intakes[stream].learn(first, planned))
                self._tell_ends()
                early, self._early = self._early, []
                for each in early:
                    self._accept(each)
            case ControlMessage(what, cuts):
                self._hold() if what == HOLD else self._stop(cuts)

    def _hold(self) -> None:
        """Stop admitting subnets, so that the launcher can find a cut that no stage has passed."""
        if not self._is_held:
            self._is_held = True
            self._sink.held([intake.hold() for intake in self._intakes])

    def _stop(self, cuts: Sequence[int]) -> None:
        """Admit only the subnets before the cuts."""
        for intake, cut in zip(self._intakes, cuts, strict=True):
            self._admit(intake.stop(cut))
        self._tell_ends()

    def _tell_ends(self) -> None:
        """Request a checkpoint where a stream was cut short, once all before it is admitted."""
        for stream, intake in enumerate(self._intakes):
            end = intake.take_end()
            if end is not None and self._checkpointer.is_new(StreamId(stream), end):
                self._tell(CutAdmitted(time.monotonic_ns(), StreamId(stream), SequenceId(end)))

    def _admit(self, planned: Iterable[Planned]) -> None:
        """Admit subnets in order. A subnet without work on this stage may admit further ones."""
        is_admitting = bool(self._unadmitted)
        self._unadmitted.extend(planned)
        while self._unadmitted and not is_admitting:
            subnet, partition, priorities = self._unadmitted[0]
            stream, y, now_ns = subnet.stream, subnet.sequence_id, time.monotonic_ns()
            if self._checkpointer.is_due(stream, y):
                self._tell(CutAdmitted(now_ns, stream, y, self._checkpointer.patience))
            for layer in map(subnet.layer, partition.blocks(self._stage)):
                if layer not in self._asked:
                    self._asked.add(layer)
                    self._unmade.append(layer)
            is_trained = self._wiring.of(stream).is_trained and not self._steps.is_probe(y)
            self._tell(SubnetAdmitted(now_ns, subnet, partition, priorities, is_trained))
            self._unadmitted.popleft()

    def _tell(self, event: Event) -> None:
        """Pass an event to the controller, and carry out the commands that it returns."""
        self._events.append(event)
        if len(self._events) > 1:
            return
        while self._events:
            self._sink.event(self._events[0])
            for kind, alike in groupby(self._controller.handle(self._events[0]), type):
                if kind is WriteLayer:
                    self._write(cast(list[WriteLayer], list(alike)))
                    continue
                for command in alike:
                    self._carry_out(command)
            self._events.popleft()

    def _carry_out(self, command: Command) -> None:
        match command:
            case RecordAccess(access):
                self._sink.access(access)
            case RunTask(task):
                self._run.extend((task, *access) for access in command.accesses())
            case SendOutput():
                self._send_output(command)
            case RequestField(task, field):
                require(self._fields, command).request(task, field)
            case Contribute():
                self._contribute(command)
            case PushVersion():
                self._layers.push(command)
            case JoinSum():
                require(self._updates, command).join(command)
            case LoadLayer(layer):
                _ = self._stores[layer.stream][layer]  # creates the layer if necessary
                self._memory_retry.attempt(lambda: self._placement.load(layer))
            case SaveLayer(layer):
                self._placement.save(layer)
            case EvictLayer(layer):
                self._compute.evict(layer)
            case CaptureLayer() | FinishCut():
                self._checkpointer.carry_out(command)
            case DropVersion(layer, version):
                self._stores[layer.stream][layer].drop(version)
            case RetireSubnet(stream, sequence_id):
                self._compute.retire(stream, sequence_id)
                self._admit(self._intakes[stream].retire(sequence_id))

    def _send_output(self, command: SendOutput) -> None:
        """Send a task's output, or accept it directly if the receiver is a task of this stage.

        A credit holds no tensors.
        """
        receiver, name = command.receiver, command.name
        is_credit = name.startswith(CREDIT)
        tensors = () if is_credit else self._compute.output(command.source or receiver, name)
        if receiver.stage == self._stage:
            self._compute.accept(receiver, tensors, name)
        else:
            message = InputMessage(receiver, command.upcoming, tensors, name)
            self._transport.send(self._positions.worker(receiver.stage), message)

    def _contribute(self, command: Contribute) -> None:
        """Send this stage's contribution to an exchange, after all gradients of the step exist."""
        name, stream, first = command.exchange, command.stream, command.sequence_id
        values = require(self._updates, command).contribution(command)
        message = ContributionMessage(name, stream, first, self._stage, values)
        for stage in command.receivers:
            if stage == self._stage:
                self._take_contribution(message)
            else:
                self._transport.send(self._positions.worker(stage), message)

    def _take_contribution(self, message: ContributionMessage) -> None:
        name, stream, first, sender, values = message
        require(self._updates, message).take(name, stream, first, sender, values)
        self._tell(ContributionArrived(time.monotonic_ns(), name, stream, first, sender))

    def _write(self, commands: Sequence[WriteLayer]) -> None:
        """Apply updates together. Each of them is logged with an equal share of the time."""
        updates = require(self._updates, commands[0])
        start_ns = time.monotonic_ns()
        owed_ns = updates.write(*commands, begin=self._begin_write) // len(commands)
        share_ns = (time.monotonic_ns() - start_ns) // len(commands)
        written: list[Event] = []
        for command in commands:
            layer, y, end_ns = command.layer, command.sequence_id, start_ns + share_ns
            stored = self._stores[layer.stream][layer]
            digest = stored.digest() if self._digests and command.ends_step else ""
            if command.ends_step and y < self._verified:
                self._sink.written(command, stored)
            written.append(WriteFinished(end_ns, layer, y, start_ns, digest, owed_ns))
            start_ns = end_ns
        if not self._controller.follows_blocks:
            self._look()  # arrived messages may be handled before the next update
        self._events += written

    def _begin_write(self, command: WriteLayer) -> None:
        """Record the layer before its update, so that an error report names the right one."""
        self._doing = (f"{command.layer.stream}.{command.sequence_id} WRITE of", command.layer)
