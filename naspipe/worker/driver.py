"""The loop of a worker process: it carries out a controller's commands with tensors and messages.

Theory of operation
-------------------

One thread does everything that touches tensors or the controller. Other threads only move bytes:
the transport, copies between host and device, data for late fields, checkpoint files. Whatever they
finish is picked up by this loop and becomes an event with a time.

**One turn of the loop.** If a run of blocks has been commanded, ``_step`` computes its next block.
If not, ``_wait`` waits for a message or for a copy, and does idle work (making layers, capturing
layers of a checkpoint) until one comes. Both then take in everything that has arrived, without
waiting. Each thing that happened is told to the controller as an event (``_tell``), and the
commands that it returns are carried out at once, in order. A command may lead to
further events; they queue up behind the present one, so the controller is never called from within
itself.

**Invariants.**

- Events are told in the order in which things happened here, and each command is carried out
  before the next event is told. So a log of the events reproduces the run.
- A block is never interrupted. Between two blocks, messages are taken in only if a finished block
  leads to something (``follows_blocks``); otherwise after the run.
- Consecutive updates are applied together, which lets optimizers step several layers at once.
- Every wait ends: by a message, by a copy, or with ``TransportError`` after ``timeout_seconds``,
  which names the oldest work and what it waits for.
- If the device is short of memory, what can be recomputed is freed and the block is tried once
  more. A block changes nothing before it has succeeded.

**How it begins and ends.** A resumed run first tells the controller the versions that the
checkpoint holds. A stage ends when all subnets are retired and no other stage waits for one of its
layers. To stop early, the launcher asks all stages to *hold*, learns how far each has been
admitted, and sends a cut that no stage has passed; each stage then finishes what is before the cut.

**What was tried and rejected.** A thread for messages would have to share the controller, and its
order of events could not be reproduced. Writing each layer at once after its backward delays the
gradients that the stage before is waiting for; so outputs go first.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeVar, cast

import torch

from naspipe.config.errors import InvariantError, TransportError
from naspipe.config.ids import LayerId, SequenceId, StageId, StreamId, Subnet, Version
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
from naspipe.worker.blocks.ports import BlockCompute, Updates
from naspipe.worker.checkpoints.checkpointer import Checkpointer
from naspipe.worker.late_fields import LateFields
from naspipe.worker.layer_exchange import LayerExchange
from naspipe.worker.layers.layer_store import LayerStore
from naspipe.worker.placement import Placement
from naspipe.worker.stage_files import StageSink


class IdleWork:
    """Layers that will be needed are made; then the controller's turn, for checkpoints.

    Args:
        controller: may have work of its own.
        stores: make the layers of each stream.
        tell: lets the controller handle an event.
    """

    def __init__(
        self,
        controller: StageController,
        stores: Sequence[LayerStore],
        tell: Callable[[Event], None],
    ) -> None:
        self._controller = controller
        self._stores = tuple(stores)
        self._tell = tell
        self._unmade: deque[LayerId] = deque()
        self._asked: set[LayerId] = set()

    def __bool__(self) -> bool:
        return bool(self._unmade) or self._controller.is_idle_work

    def make(self, layers: Iterable[LayerId]) -> None:
        """Layers that will be needed, the first one first; each is made once.

        A stage that never waits gets to none of them, so what is kept must not grow with the
        subnets.
        """
        new = [layer for layer in layers if layer not in self._asked]
        self._asked.update(new)
        self._unmade.extend(new)

    def go_on(self) -> None:
        """Do a little of it."""
        if self._unmade:
            layer = self._unmade.popleft()
            self._stores[layer.stream].prepare(layer)
        else:
            self._tell(StageIdle(time.monotonic_ns()))

    def finish(self) -> None:
        """Do what has to be done at last; layers that nobody needed are not made any more."""
        self._unmade.clear()
        while self:
            self.go_on()


class LayerWrites:
    """Applies WRITEs on one stage.

    Args:
        updates: what applies them.
        stores: the layers of each stream.
        digests: hash the bytes that each leaves.
        verified: sequence IDs below this are compared with a plain loop.
        sink: told of the layers that these leave.
    """

    def __init__(
        self,
        updates: Updates,
        stores: Sequence[LayerStore],
        digests: bool,
        verified: int,
        sink: StageSink,
    ) -> None:
        self._updates = updates
        self._stores = tuple(stores)
        self._digests = digests
        self._verified = verified
        self._sink = sink

    def write(
        self, commands: Sequence[WriteLayer], begin: Callable[[WriteLayer], None]
    ) -> Iterator[WriteFinished]:
        """Apply them; each is said to have taken the same share of the time.

        ``begin`` is called before each, so that whatever one raises can be told of by its layer.
        """
        start_ns = time.monotonic_ns()
        owed_ns = self._updates.write(*commands, begin=begin) // len(commands)
        share_ns = (time.monotonic_ns() - start_ns) // len(commands)
        for command in commands:
            layer, end_ns = command.layer, start_ns + share_ns
            is_version = self._digests and command.ends_step
            digest = self._stores[layer.stream][layer].digest() if is_version else ""
            if command.ends_step and command.sequence_id < self._verified:
                self._sink.written(command, self._stores[layer.stream][layer])
            yield WriteFinished(end_ns, layer, command.sequence_id, start_ns, digest, owed_ns)
            start_ns = end_ns


class OutputSender:
    """One stage's way out for tensors of tasks.

    Args:
        stage: which one.
        compute: has the outputs.
        transport: the way to the other workers.
        positions: which of them holds which stage.
    """

    def __init__(
        self, stage: StageId, compute: BlockCompute, transport: Transport, positions: Positions
    ) -> None:
        self._stage = stage
        self._compute = compute
        self._transport = transport
        self._positions = positions

    def send(self, command: SendOutput) -> None:
        """Hand an output over; a task of this stage has it at once. A credit holds nothing."""
        receiver, name = command.receiver, command.name
        is_credit = name.startswith(CREDIT)
        tensors = () if is_credit else self._compute.output(command.source or receiver, name)
        if receiver.stage == self._stage:
            self._compute.accept(receiver, tensors, name)
        else:
            message = InputMessage(receiver, command.upcoming, tensors, name)
            self._transport.send(self._positions.worker(receiver.stage), message)


class Contributions:
    """One stage's part.

    Args:
        stage: which one.
        updates: makes contributions, and keeps them until the WRITEs of their step.
        transport: the way to the other workers.
        positions: which of them holds which stage.
    """

    def __init__(
        self, stage: StageId, updates: Updates, transport: Transport, positions: Positions
    ) -> None:
        self._stage = stage
        self._updates = updates
        self._transport = transport
        self._positions = positions

    def hand_out(self, command: Contribute) -> list[ContributionArrived]:
        """All gradients of a step are here: tell the others, and this stage if it waits too."""
        name, stream, first = command.exchange, command.stream, command.sequence_id
        values = self._updates.contribution(command)
        message = ContributionMessage(name, stream, first, self._stage, values)
        arrived = []
        for stage in command.receivers:
            if stage == self._stage:
                arrived.append(self.take(message))
            else:
                self._transport.send(self._positions.worker(stage), message)
        return arrived

    def take(self, message: ContributionMessage) -> ContributionArrived:
        """Keep what a stage told."""
        name, stream, first, sender, values = message
        self._updates.take(name, stream, first, sender, values)
        return ContributionArrived(time.monotonic_ns(), name, stream, first, sender)


@dataclass(frozen=True, slots=True, kw_only=True)
class Effects:
    """A stage's parts, each with one kind of effect."""

    compute: BlockCompute
    """Runs blocks."""
    stores: Sequence[LayerStore]
    """The layers of each stream."""
    placement: Placement
    """Where layers and tensors live."""
    transport: Transport
    """The way to the other workers."""
    positions: Positions
    """Which of them holds which stage."""
    sink: StageSink
    """Where results go."""
    checkpointer: Checkpointer
    """Captures what belongs to a checkpoint."""
    updates: Updates | None = None
    """WRITEs; None where nothing is trained."""
    fields: LateFields | None = None
    """Batch fields that come later; None where all come with their batch."""

    def output_sender(self, stage: StageId) -> OutputSender:
        """What hands the outputs of tasks on."""
        return OutputSender(stage, self.compute, self.transport, self.positions)

    def layer_exchange(self) -> LayerExchange:
        """What hands layers over and takes them."""
        return LayerExchange(
            self.stores,
            self.placement,
            self.transport,
            self.positions,
            self.compute.memory_retry,
            self.updates,
        )

    def contributions(self, stage: StageId) -> Contributions | None:
        """What a stage has to do with exchanges; None where nothing is trained."""
        if self.updates is None:
            return None
        return Contributions(stage, self.updates, self.transport, self.positions)

    def writing(self, digests: bool, verified: int) -> LayerWrites | None:
        """What applies WRITEs; None where nothing is trained."""
        if self.updates is None:
            return None
        return LayerWrites(self.updates, self.stores, digests, verified, self.sink)


Part = TypeVar("Part")


def needed(part: Part | None, why: object) -> Part:
    """A part that not every stage has, where a command or a message asks for it.

    Raises:
        InvariantError: when this stage has none.
    """
    if part is None:
        raise InvariantError(f"{why}: this stage trains nothing and waits for nothing")
    return part


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverOptions:
    """How a stage's loop goes on."""

    timeout_seconds: float
    """How long to wait for a message before giving up."""
    digests: bool = False
    """Hash the bytes that every WRITE leaves."""
    verified: int = 0
    """Sequence IDs below this are compared with a plain loop."""
    wiring: Wiring = PLAIN
    """How the streams are joined."""
    steps: Steps = ONE_PASS
    """How passes form steps, in every stream."""
    resumed: Sequence[StreamResumed] = ()
    """Streams that go on behind a checkpoint."""

    def is_trained(self, subnet: Subnet) -> bool:
        """Whether a backward follows a subnet's forward."""
        is_probe = self.steps.is_probe(subnet.sequence_id)
        return self.wiring.of(subnet.stream).is_trained and not is_probe


class StageDriver:
    """One stage's loop: messages in, a run of blocks, what it hands on, its WRITEs.

    Args:
        stage: which stage this is.
        controller: takes every decision.
        effects: carry its commands out.
        intakes: of each stream; which subnets may be under way.
        options: how the loop goes on.
    """

    def __init__(
        self,
        stage: StageId,
        controller: StageController,
        effects: Effects,
        intakes: Sequence[Intake],
        options: DriverOptions,
    ) -> None:
        self._doing: tuple[object, LayerId | None] = ("start", None)
        self._stage = stage
        self._controller = controller
        self._compute, self._stores = effects.compute, effects.stores
        self._placement, self._transport = effects.placement, effects.transport
        self._outputs = effects.output_sender(stage)
        self._contributions = effects.contributions(stage)
        self._writing = effects.writing(options.digests, options.verified)
        self._sink, self._checkpointer = effects.sink, effects.checkpointer
        self._updates, self._fields = effects.updates, effects.fields
        self._layers = effects.layer_exchange()
        self._options = options
        self._intakes = tuple(intakes)
        self._early: list[Message] = []  # for subnets that this stage was not told of yet
        self._unadmitted: deque[Planned] = deque()
        self._is_held = False
        self._run: deque[tuple[Task, LayerId, Version, int]] = deque()
        self._computed: deque[BlockFinished] = deque()  # that the controller was not told of yet
        self._events: deque[Event] = deque()
        self._idle_work = IdleWork(controller, effects.stores, self._tell)
        self._memory_retry = effects.compute.memory_retry

    @property
    def current(self) -> str:
        """What the stage is doing, for the report of a failure."""
        what, layer = self._doing
        where = f" block {layer.block} (layer {self._compute.label(layer)})" if layer else ""
        return f"{what}{where}"

    @property
    def measured(self) -> dict[str, int]:
        """Bytes handed over to other stages, and blocks computed again for want of memory."""
        return {**self._layers.measured, "memory_retries": self._memory_retry.retries}

    def finishing(self) -> None:
        """Say that the training is over and the layers are being written."""
        self._doing = ("writing its layers", None)

    def run(self) -> None:
        """Work until every subnet is retired here.

        Raises:
            TransportError: when nothing arrived for the time-out.
            DeviceFullError: when the device's memory is too small, whatever was freed.
            Exception: whatever a layer, the loss or the data raises.
        """
        try:
            self._work()
        except torch.OutOfMemoryError as error:
            raise self._compute.explain_shortage(error, self.current) from error

    def _work(self) -> None:
        for event in self._options.resumed:
            self._tell(event)
        for intake in self._intakes:
            self._admit(intake.open())
        controller, intakes = self._controller, self._intakes
        while self._run or controller.owes_layers or not all(each.is_finished for each in intakes):
            self._step() if self._run else self._wait()
        self._idle_work.finish()
        self._hold()
        self._doing = ("writing its last checkpoint", None)
        self._checkpointer.drain()

    def _step(self) -> None:
        """Compute the next block of the run, and tell of what nobody has been told of."""
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
        """Take in every message that is here already, and every copy that is over."""
        self._take_arrivals()
        while message := self._transport.receive(0):
            self._accept(message)

    def _take_arrivals(self) -> bool:
        """Tell of layers that were loaded or saved, and of fields; whether there were any."""
        self._checkpointer.report()
        told: list[Event] = list(self._placement.take_finished())
        if self._fields is not None:
            told += self._fields.take()
        for event in told:
            self._tell(event)
        return bool(told)

    def _wait(self) -> None:
        """Wait for a message or a copy; until one comes, do what has to be done some time."""
        self._doing = ("waiting", None)
        deadline = time.monotonic() + self._options.timeout_seconds
        while not self._take_arrivals():
            left = 0.0 if self._idle_work else deadline - time.monotonic()
            until = min(max(0.0, left), self._placement.left_seconds)
            if message := self._transport.receive(until):
                self._accept(message)
                break
            if self._idle_work:
                self._idle_work.go_on()
            elif left <= 0:
                raise TransportError(
                    f"stage {self._stage}: nothing arrived for {self._options.timeout_seconds:g} s;"
                    f" oldest work: {'; '.join(self._controller.unfinished[:3])}"
                )
        self._look()

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
                self._tell(needed(self._contributions, message).take(message))
            case SubnetsMessage(stream, first, planned):
                self._admit(self._intakes[stream].learn(first, planned))
                self._tell_ends()
                early, self._early = self._early, []
                for each in early:
                    self._accept(each)
            case ControlMessage(what, cuts):
                self._hold() if what == HOLD else self._stop(cuts)

    def _hold(self) -> None:
        """Let the launcher find a cut that no stage is beyond."""
        if not self._is_held:
            self._is_held = True
            self._sink.held([intake.hold() for intake in self._intakes])

    def _stop(self, cuts: Sequence[int]) -> None:
        """Go on up to the cuts only."""
        for intake, cut in zip(self._intakes, cuts, strict=True):
            self._admit(intake.stop(cut))
        self._tell_ends()

    def _tell_ends(self) -> None:
        """Leave a checkpoint where a stream was cut short, once all before it is admitted."""
        for stream, intake in enumerate(self._intakes):
            end = intake.take_end()
            if end is not None and self._checkpointer.is_new(StreamId(stream), end):
                self._tell(CutAdmitted(time.monotonic_ns(), StreamId(stream), SequenceId(end)))

    def _admit(self, planned: Iterable[Planned]) -> None:
        """Tell of subnets in their order; one that has nothing to do here lets others in."""
        is_at_it = bool(self._unadmitted)
        self._unadmitted.extend(planned)
        while self._unadmitted and not is_at_it:
            subnet, partition, priorities = self._unadmitted[0]
            stream, y, now_ns = subnet.stream, subnet.sequence_id, time.monotonic_ns()
            if self._checkpointer.is_due(stream, y):
                self._tell(CutAdmitted(now_ns, stream, y, self._checkpointer.patience))
            self._idle_work.make(map(subnet.layer, partition.blocks(self._stage)))
            is_trained = self._options.is_trained(subnet)
            self._tell(SubnetAdmitted(now_ns, subnet, partition, priorities, is_trained))
            self._unadmitted.popleft()

    def _tell(self, event: Event) -> None:
        """Let the controller handle an event, and what carrying its commands out leads to."""
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
                self._outputs.send(command)
            case RequestField(task, field):
                needed(self._fields, command).request(task, field)
            case Contribute():
                for event in needed(self._contributions, command).hand_out(command):
                    self._tell(event)
            case PushVersion():
                self._layers.push(command)
            case JoinSum():
                needed(self._updates, command).join(command)
            case LoadLayer(layer):
                _ = self._stores[layer.stream][layer]  # made now, if it has not been made yet
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

    def _write(self, commands: Sequence[WriteLayer]) -> None:
        written = list(needed(self._writing, commands[0]).write(commands, self._begin_write))
        if not self._controller.follows_blocks:
            self._look()  # what came meanwhile may go before the next WRITE
        self._events += written

    def _begin_write(self, command: WriteLayer) -> None:
        self._doing = (f"{command.layer.stream}.{command.sequence_id} WRITE of", command.layer)
