"""One stage put together from its real parts, on the stand-in for a GPU.

The checkpoint's thread is no thread here: its next job is done as that actor, whenever the drawn
order says so. A thread would add nothing. It shares a queue and a list of outcomes with the thread
that computes; the clocks know which of these order what, whatever ran first. And a case is the
same every time.
"""

from __future__ import annotations

from collections import deque

import torch

from naspipe.config.ids import FIRST_STREAM, LayerId, SequenceId, StageId
from naspipe.engine.commands import PushVersion
from naspipe.engine.events import LAYER, LayerLoaded, Parcel, Task, TaskKind
from naspipe.machine.cuda import CudaDevice
from naspipe.machine.out_of_memory import LayerUse, MemoryRetry
from naspipe.machine.staging import Staging
from naspipe.wire.messages import InputMessage, VersionMessage
from naspipe.wire.tensor_codec import raw_bytes
from naspipe.worker.job import OnePipeline
from naspipe.worker.layer_exchange import LayerExchange
from naspipe.worker.layers.layer_store import LayerStore
from naspipe.worker.layers.stored_layer import StoredLayer
from naspipe.worker.placement import SwappedPlacement
from tests.happens_before.gpu_memory import PINNED
from tests.happens_before.torch_on_gpu import GPU, TorchOnGpu, span_of
from tests.happens_before.watched_captures import WatchedCaptures
from tests.happens_before.watched_layers import (
    LAYERS,
    RECIPE,
    SIZES,
    SPACE,
    STEM,
    Part,
    expect_bytes,
    launch_kernel,
    parts_of,
    pattern,
    read_parts,
    version_after,
)
from tests.happens_before.wire import THERE, Wire

BUDGET_BYTES = 10 << 10
"""The permanent layer and two of the others."""
HOST_BYTES = 64 << 10
ACTIVATION_BYTES = (600, 2048)


class WatchedStage:
    """A stage, and what has to be in its memory.

    Args:
        torch_: the GPU.
        wire: the way to the other stage.
    """

    def __init__(self, torch_: TorchOnGpu, wire: Wire) -> None:
        recorder = torch_.recorder
        self.torch, self.recorder, self.wire = torch_, recorder, wire
        self.device, staging = CudaDevice(0, BUDGET_BYTES), Staging(GPU)
        self.placement = SwappedPlacement(
            self.device, [RECIPE], LayerUse(0), HOST_BYTES, {STEM[:2]}
        )
        self.placement._sizes = [SIZES]
        self.swapper = self.placement._swapper
        self.store = LayerStore(SPACE, 1, RECIPE, self._adopt, on_dropped=self.placement.forget)
        self.transport = wire.open(staging)
        pipeline = OnePipeline(2)
        retry = MemoryRetry(lambda: None)
        self.exchange = LayerExchange([self.store], self.placement, self.transport, pipeline, retry)
        self.captures = WatchedCaptures(torch_, self.store)
        self.writes = dict.fromkeys(LAYERS, 0)
        """How many WRITEs each layer has seen, on both stages."""
        self.where = dict.fromkeys(LAYERS, "absent")
        self.dirty: set[LayerId] = set()
        self.graphs: set[LayerId] = set()
        """Layers with a pass under way: its backward reads them where they are then."""
        self.gradients: dict[LayerId, tuple[torch.Tensor, Part]] = {}
        self.inputs: deque[tuple[torch.Tensor, Part]] = deque()
        self.outputs: deque[tuple[torch.Tensor, Part]] = deque()
        self.bytes_to_come: deque[int] = deque()
        self.away: list[LayerId] = []
        """On the other stage; what was sent first is first."""
        self.arriving: set[LayerId] = set()
        self._number = 0

    def _adopt(self, layer: LayerId, stored: StoredLayer) -> None:
        for name, tensor in stored.tensors():
            raw_bytes(tensor).numpy()[:] = pattern(layer, 0, name)
        self.placement.adopt(layer, stored)

    # What the swapper does.

    def load(self, layer: LayerId) -> None:
        """As the command."""
        _ = self.store[layer]
        self.placement.load(layer)
        self.where[layer] = "loading"

    def save(self, layer: LayerId) -> None:
        """As the command."""
        self.placement.save(layer)
        self.dirty.discard(layer)
        self.where[layer] = "saving"

    def evict(self, layer: LayerId) -> None:
        """As the command."""
        self.placement.evict(layer)
        self.where[layer] = "absent"

    def may_evict(self, layer: LayerId) -> bool:
        """Whether the controller would."""
        return self.where[layer] == "resident" and layer not in self.dirty

    def take_finished(self) -> None:
        """As between blocks."""
        for done in self.placement.take_finished():
            if self.where[done.layer] == ("loading" if isinstance(done, LayerLoaded) else "saving"):
                self.where[done.layer] = "resident"

    # What is computed.

    def make_tensor(self) -> tuple[torch.Tensor, Part]:
        """Fresh memory of the GPU, and a byte that a kernel fills it with."""
        self._number += 1
        nbytes = ACTIVATION_BYTES[self._number % 2]
        tensor = torch.empty(nbytes, dtype=torch.uint8, device=GPU)
        return tensor, Part(span_of(tensor), self._number % 251)

    def forward(self, layer: LayerId) -> None:
        """A block's; its input is one that arrived, or a field of the batch."""
        if self.inputs:
            _, read = kept = self.inputs.popleft()
        else:
            field = torch.full((600,), 77, dtype=torch.uint8)
            kept = self.placement.to_device(field), None
            read = Part(span_of(kept[0]), 77)
        output, left = self.make_tensor()
        stored = self.store[layer]
        parts = read_parts(layer, stored, self.writes[layer])
        launch_kernel(self.torch, f"forward of {layer}", [read, *parts], [left])
        self.graphs.add(layer)
        self.outputs.append((output, left))

    def backward(self, layer: LayerId) -> None:
        """A block's; what its graph reads of the layer is where the layer is now."""
        parts = read_parts(layer, self.store[layer], self.writes[layer])
        self.graphs.remove(layer)
        self.gradients[layer] = self.make_tensor()
        left = self.gradients[layer][1]
        launch_kernel(self.torch, f"backward of {layer}", parts, [left])

    def write(self, layer: LayerId) -> None:
        """An optimizer step; the first one makes the optimizer's state."""
        stored, writes = self.store[layer], self.writes[layer]
        _kept, read = self.gradients.pop(layer)
        before = parts_of(layer, stored, writes)
        stored.advance(version_after(writes + 1), version_after(writes), False)
        for parameter in stored.parameters.values():
            state = stored.optimizer.state[parameter]
            if not state:
                memory = torch.empty(parameter.nbytes, dtype=torch.uint8, device=GPU)
                state["momentum_buffer"] = memory.view(torch.float32)
        after = parts_of(layer, stored, writes + 1)
        launch_kernel(self.torch, f"WRITE of {layer}", [read, *before], after)
        self.writes[layer] += 1
        self.dirty.add(layer)

    # What comes and goes.

    def send_output(self) -> None:
        """To the next stage."""
        tensor, (_, byte) = self.outputs.popleft()
        self.wire.check = lambda message: expect_bytes(
            self.recorder, message.tensors[0].numpy(), byte, "output"
        )
        task = Task(FIRST_STREAM, SequenceId(0), TaskKind.FORWARD, StageId(1))
        self.transport.send(THERE, InputMessage(task, (), (tensor,)))

    def push(self, layer: LayerId, parcel: Parcel) -> None:
        """A layer, or a copy of it, to the next stage."""
        writes = self.writes[layer]

        def check(message: VersionMessage) -> None:
            for name, received in message.state:
                expect_bytes(
                    self.recorder, memoryview(received.frame), pattern(layer, writes, name), name
                )
            if parcel == LAYER:
                self.away.append(layer)

        self.wire.check = check
        self.exchange.push(PushVersion(layer, version_after(writes), StageId(1), parcel))
        if parcel == LAYER:
            self.where[layer] = "away"
            self.dirty.discard(layer)

    def return_layer(self) -> None:
        """The other stage writes the layer that it has had longest, and hands it over."""
        layer = self.away.pop(0)
        self.writes[layer] += 1
        writes, module = self.writes[layer], SPACE.blocks[layer.block].candidates[layer.candidate]()
        sent = StoredLayer("sent", SPACE.blocks[layer.block].rule, module, RECIPE)
        for parameter in sent.parameters.values():
            sent.optimizer.state[parameter]["momentum_buffer"] = torch.zeros(parameter.shape)
        state = list(sent.tensors())
        for name, tensor in state:
            raw_bytes(tensor).numpy()[:] = pattern(layer, writes, name)
        self.wire.send_here(VersionMessage(layer, version_after(writes), state))
        self.arriving.add(layer)

    def send_input(self) -> None:
        """The other stage sends an input here."""
        self._number += 1
        byte = self._number % 251
        tensor = torch.full((ACTIVATION_BYTES[self._number % 2],), byte, dtype=torch.uint8)
        task = Task(FIRST_STREAM, SequenceId(0), TaskKind.FORWARD, StageId(0))
        self.wire.send_here(InputMessage(task, (), (tensor,)))
        self.bytes_to_come.append(byte)

    def receive(self) -> None:
        """Take the next message in."""
        message = self.transport.receive(0)
        if isinstance(message, VersionMessage):
            self.exchange.take(message)
            self.arriving.discard(message.layer)
            self.where[message.layer] = "resident" if message.layer == STEM else "absent"
        else:
            moved = self.placement.receive(message.tensors[0])
            self.inputs.append((moved, Part(span_of(moved), self.bytes_to_come.popleft())))

    def finish(self) -> None:
        """Bring all layers to host memory, and look at them."""
        while self.wire:
            self.wire.deliver()
        while self.wire.num_arrived:
            self.receive()
        self._end_copies()
        for layer in LAYERS:
            if self.where[layer] == "resident":
                self.save(layer)
        self._end_copies()
        for layer in LAYERS:
            if self.where[layer] == "resident":
                self.evict(layer)
        while self.captures.waits:
            self.captures.write()
        self.torch.gpu.finish()
        for layer, stored in self.store.items():
            for span, byte in parts_of(layer, stored, self.writes[layer]):
                self.torch.touch(span, False, "the end")
                expect_bytes(
                    self.recorder, PINNED.bytes(span).tobytes(), byte, f"at the end {layer}"
                )

    def _end_copies(self) -> None:
        self.torch.gpu.finish()
        self.take_finished()
