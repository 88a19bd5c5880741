"""A stage's blocks and WRITEs, called by hand in the order of a plain loop: the loop's bits."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from naspipe.core.commands import WriteLayer
from naspipe.core.errors import ConfigError
from naspipe.core.ids import FIRST_STREAM, INITIAL
from naspipe.core.task import TaskKind
from naspipe.runtime.blocks.compute import StageCompute
from naspipe.runtime.devices.device_waits import per_block
from naspipe.runtime.devices.emulated_device import EmulatedDevice
from naspipe.runtime.devices.out_of_memory import LayerUse
from naspipe.runtime.layers.resident_layer import LayerMemory
from naspipe.runtime.memory.placement import Placement, SwappedPlacement
from naspipe.runtime.wire.wakeup import Wakeup
from tests.oracle import bits
from tests.runtime import small_parts
from tests.runtime.small_parts import (
    CHAINS,
    LOSS,
    SEED,
    Lending,
    Residual,
    Stashing,
    batches,
    layer,
    plain_loop,
    workload,
)
from tests.runtime.tasks import task

FORWARD, BACKWARD = TaskKind.FORWARD, TaskKind.BACKWARD


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Stages:
    """Both stages' computes in this process, and what each hands the other."""

    def __init__(self, work=None, placements=None):
        places = placements or [Placement(torch.device("cpu")) for _ in range(2)]
        self.computes = [StageCompute([work or workload()], place) for place in places]
        self.versions = {}

    def of(self, block):
        return self.computes[block // 2]

    def forward(self, y, blocks=range(4)):
        for block in blocks:
            if block == 2:
                passed = self.computes[0].output(task(y, FORWARD, 0))
                self.computes[1].accept(task(y, FORWARD, 1), passed)
            used = layer(y, block)
            version = self.versions.get(used, INITIAL)
            result = self.of(block).run_block(
                task(y, FORWARD, block // 2), used, version, used.candidate
            )
            assert (result is None) == (block < 3)
        return result

    def backward(self, y, blocks=range(3, -1, -1)):
        for block in blocks:
            if block == 1:
                passed = self.computes[1].output(task(y, BACKWARD, 1))
                self.computes[0].accept(task(y, BACKWARD, 0), passed)
            used = layer(y, block)
            version = self.versions.get(used, INITIAL)
            self.of(block).run_block(task(y, BACKWARD, block // 2), used, version, used.candidate)

    def write(self, y):
        for block in range(4):
            used = layer(y, block)
            base = self.versions.get(used, INITIAL)
            self.of(block).updates.write(WriteLayer(used, y, base, False))
            self.versions[used] = y

    def step(self, y):
        result = self.forward(y)
        self.backward(y)
        self.write(y)
        for compute in self.computes:
            compute.retire(FIRST_STREAM, y)
        return result.value

    def tensors(self):
        found = {}
        for compute in self.computes:
            for (_, block, candidate), stored in compute.stores[0].items():
                for name, value in stored.tensors():
                    found[block, candidate, name] = bits(value)
        return found


def expected(oracle):
    return {key: bits(value) for key, value in oracle.tensors().items()}


def test_steps_by_hand_have_the_bits_of_the_plain_loop():
    stages, oracle = Stages(), plain_loop()
    losses = [stages.step(y) for y in range(len(CHAINS))]
    assert [bits(loss) for loss in losses] == [bits(loss) for loss in oracle.losses]
    assert stages.tensors() == expected(oracle)


def test_passes_that_overlap_read_what_they_were_told_to():
    """Subnets 0 and 1 share the stem and the head: 1 reads them before 0 has written."""
    stages = Stages()
    first = stages.forward(0, range(2))
    assert first is None
    stages.forward(1, range(2))
    stages.forward(0, range(2, 4))
    with torch.no_grad():
        oracle = plain_loop(0)
        for y in (0, 1):
            modules = [oracle.layer(*pair) for pair in enumerate(CHAINS[y])]
            _, loss = oracle.forward(y, 0, modules, batches(SEED, y), LOSS)
            if y == 1:
                assert bits(stages.forward(1, range(2, 4)).value) == bits(loss)


def test_a_version_that_is_not_there_is_refused():
    stages = Stages()
    stages.step(0)
    with pytest.raises(Exception, match="version -1 was asked for"):
        stages.computes[0].run_block(task(1, FORWARD, 0), layer(1, 0), INITIAL, 0)


def test_recompute_computes_each_forward_once_more_with_the_same_draws():
    plain, again = Stages(), Stages(replace(workload(), recompute=True))
    counts = []
    for stages in (plain, again):
        before = Residual.forwards
        losses = [bits(stages.step(y)) for y in range(2)]
        counts.append(Residual.forwards - before)
    assert counts == [2, 4]
    assert losses == [bits(loss) for loss in plain_loop(2).losses]
    assert again.tensors() == plain.tensors()


def test_what_a_pass_holds_is_forgotten_with_it():
    stages = Stages()
    compute = stages.computes[0]
    assert compute.kept_bytes == 0
    stages.forward(0)
    assert compute.kept_bytes > 0
    stages.backward(0)
    stages.write(0)
    for each in stages.computes:
        each.retire(FIRST_STREAM, 0)
    assert [each.kept_bytes for each in stages.computes] == [0, 0]


class Short(nn.Linear):
    """Runs out of memory once: in a forward, or half-way through a backward."""

    left: list[str] = []  # noqa: RUF012

    def __init__(self):
        super().__init__(6, 6)

    def forward(self, x):
        self._fail("forward")
        out = super().forward(x)
        if x.requires_grad:
            x.register_hook(lambda gradient: self._fail("backward"))
        return out

    def _fail(self, where):
        if where in Short.left:
            Short.left.remove(where)
            raise torch.OutOfMemoryError("injected")


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_a_block_that_ran_out_of_memory_has_changed_nothing(monkeypatch, where):
    """Tried again it leaves the bits of a block that never did."""
    monkeypatch.setattr("tests.runtime.small_parts.Residual", Short)
    calm, short = Stages(), Stages()
    calm.step(0)
    short.forward(0, range(1))
    Short.left.append(where)
    if where == "forward":
        with pytest.raises(torch.OutOfMemoryError):
            short.forward(0, range(1, 4))
        short.forward(0, range(1, 4))
        short.backward(0)
    else:
        short.forward(0, range(1, 4))
        with pytest.raises(torch.OutOfMemoryError):
            short.backward(0)
        short.computes[1].free_memory()
        short.backward(0, range(2, -1, -1))
    short.write(0)
    assert short.tensors() == calm.tensors() and not Short.left


def evicted_between(monkeypatch, kind):
    """Forwards that the backward computes, and whether the bits are those of the plain loop."""
    monkeypatch.setattr(small_parts, "Residual", kind)
    with Wakeup() as wakeup:
        limits = LayerUse(0, 1 << 16, 1)
        devices = [EmulatedDevice(1 << 16, 1e12, 0.0) for _ in range(2)]
        made = [SwappedPlacement(d, [workload().recipe], limits, None, wakeup) for d in devices]
        with made[0], made[1]:
            stages = Stages(placements=made)
            for block in range(4):
                _ = stages.of(block).layer(layer(0, block))
                swap(stages.of(block).placement, layer(0, block), wakeup)
            stages.forward(0, range(2))
            compute, used = stages.computes[0], layer(0, 1)
            compute.placement.save(used)
            settle(compute.placement, wakeup)
            compute.evict(used)
            stages.forward(0, range(2, 4))
            before = kind.forwards
            left = compute.placement._memories[used].state_bytes
            compute.placement._device.allocate(left)  # so that it comes back elsewhere
            swap(compute.placement, used, wakeup)
            stages.backward(0)
            again = kind.forwards - before
            stages.write(0)
            return again, stages.tensors() == expected(plain_loop(1))


@pytest.mark.parametrize("kind", [Residual, Stashing, Lending])
def test_a_layer_may_be_evicted_between_forward_and_backward(monkeypatch, kind):
    """Its graph stays, whoever holds the layer's memory."""
    assert evicted_between(monkeypatch, kind) == (0, True)


def test_a_layer_that_comes_back_to_other_memory_is_seen(monkeypatch):
    """A graph would look for its weights in memory that is nobody's by then."""
    none = property(lambda self: None, lambda self, piece: None)
    monkeypatch.setattr(LayerMemory, "piece", none, raising=False)
    assert evicted_between(monkeypatch, Stashing) == (0, False)


@pytest.mark.parametrize("is_copied", [True, False])
def test_what_a_block_hands_on_is_not_the_layers_memory(monkeypatch, is_copied):
    """The next block's backward needs the output, and the layer is not on the device then."""
    monkeypatch.setattr(small_parts, "Residual", Lending)
    if not is_copied:
        monkeypatch.setattr(LayerMemory, "apart", lambda self, tensor: tensor)
    with Wakeup() as wakeup:
        device, recipe = EmulatedDevice(1 << 16, 1e12, 0.0), workload().recipe
        place = SwappedPlacement(device, [recipe], LayerUse(0, 1 << 16, 1), None, wakeup)
        with place:
            stages = Stages(placements=[place, place])
            for block in range(2):
                _ = stages.of(block).layer(layer(0, block))
                swap(place, layer(0, block), wakeup)
            stages.forward(0, range(2))
            (handed,) = stages.computes[0].output(task(0, FORWARD, 0))
            piece = place._memories[layer(0, 1)].piece
            shares = handed.untyped_storage().data_ptr() == piece.untyped_storage().data_ptr()
            assert shares is not is_copied and handed.requires_grad and handed.is_leaf


def test_a_write_waits_for_nothing(monkeypatch):
    """docs/gpus.md, "What time stamps mean": its kernels fall into the stage's next block."""
    waited = []
    monkeypatch.setattr(Placement, "_wait", lambda self, mark: waited.append("block"))
    stages = Stages()
    stages.forward(0)
    stages.backward(0)
    assert waited == ["block"] * 8
    before = per_block(1)
    stages.write(0)
    assert waited == ["block"] * 8
    assert per_block(1) == before


def swap(placement, used, wakeup):
    placement.load(used)
    settle(placement, wakeup)


def settle(placement, wakeup):
    assert wakeup.wait(20)
    wakeup.clear()
    assert len(placement.take_finished()) == 1


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (lambda seed, y: {"target": batches(seed, y)["target"]}, "called 'input', found target"),
        (lambda seed, y: {}, "called 'input', found an empty batch"),
        (lambda seed, y: {"input": [1.0], "target": None}, "batch 0: expected a tensor called"),
    ],
)
def test_a_batch_without_a_field_is_named(data, message):
    with pytest.raises(ConfigError, match=message):
        Stages(workload(data)).forward(0)


def test_a_batch_is_made_once_for_all_blocks_of_a_pass():
    made = []

    def data(seed, y):
        made.append(y)
        return batches(seed, y)

    stages = Stages(workload(data))
    stages.step(0)
    assert made == [0, 0], "once on each stage"
