"""Plain networks on simulated groups: what their layers cost, and how long a step takes.

A pass of n images takes n * the operations of an image / the device's speed in each layer, a
backward twice that, and a fixed time on each stage. What one stage hands to the next takes its
bytes over the link's speed. Sums and copies of layers go one after the other over one link that
all devices share.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache
from typing import NamedTuple

import search_spaces
from naspipe.api.simulate import DATA_INFO
from naspipe.config.execution import Execution
from naspipe.config.ids import FIRST_STREAM, AccessKind, LayerId, SequenceId, StageId, Subnet
from naspipe.config.partition import Partition
from naspipe.config.space import Space
from naspipe.config.steps import Steps
from naspipe.engine.events import LAYER, Parcel, Task, TaskKind
from naspipe.plan.chains import Chain, Stream
from naspipe.plan.costs import CostTable, LayerCost
from naspipe.plan.pipeline import Pipeline, Plan, plan_pipeline
from naspipe.plan.simulation import simulate_run
from naspipe.plan.virtual_driver import VirtualClock

IMAGES = 256
"""Of a step; GroPipe's."""
DEVICES = {"resnet": 2.03e12, "vgg": 4.62e12}
"""Operations per second, a multiply-add counts as two: fitted to one cell of GroPipe's for each
family (resnet50 and vgg16, 2 groups x 2 stages, one micro-batch), as what is no multiply-add, such
as batch normalisation, is not counted."""
FIXED_NS = 800_000
"""What a pass costs on each stage for every block of the network, half of it in the forward.

For every block, not only the stage's own: as if one host process launched for all stages in
turn. A guess: chosen, form and size, for the best number of micro-batches and for 4x2 over 2x4 to
be about GroPipe's.
"""
LINK = 12e9
"""Bytes per second: PCIe 3.0 x16, which the paper's devices have; not fitted."""
BACKWARD = 2
"""Work of a backward over that of a forward."""
STEPS = 2
"""Simulated; the first fills the pipeline, the last is what counts."""


class Layer(NamedTuple):
    """One block of a network."""

    operations: int
    """Of the forward of one image."""
    parameter_bytes: int
    output_bytes: int
    """Of one image."""


@cache
def space_of(network: str) -> Space:
    """A network as published, for ImageNet's images."""
    return search_spaces.build(network, "paper", DATA_INFO)


@cache
def layers_of(network: str) -> tuple[Layer, ...]:
    """Counted on the real modules, on tensors without memory."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    found = []
    with torch.device("meta"), torch.no_grad():
        data = torch.empty(2, *(DATA_INFO[name] for name in ("channels", "height", "width")))
        for block in space_of(network).blocks:
            module = block.candidates[0]()
            with FlopCounterMode(display=False) as counter:
                data = module(data)
            size = sum(each.numel() * each.element_size() for each in module.parameters())
            outputs = data[0].numel() * data.element_size()
            found.append(Layer(counter.get_total_flops() // len(data), size, outputs))
    return tuple(found)


@dataclass(slots=True)
class LinkCosts:
    """Costs of passes, and one link for the parcels of all layers."""

    table: CostTable
    """Of one pass."""
    cut: Partition
    """Of a group."""
    outputs: tuple[int, ...]
    """Nanoseconds of each block's output on its way to the next stage."""
    push: tuple[int, ...]
    """Nanoseconds of each block's parameters on the link."""
    fixed_ns: int = 0
    """Of a pass on a stage."""
    clock: VirtualClock = field(default_factory=VirtualClock)
    _free_ns: int = 0

    def access_ns(self, layer: LayerId, kind: AccessKind, sequence_id: int = -1) -> int:
        """See :class:`naspipe.plan.virtual_costs.Costs`."""
        cost = self.table.of(layer.block, layer.candidate)
        parts = {AccessKind.FORWARD: cost.forward_ns, AccessKind.BACKWARD: cost.backward_ns}
        if kind not in parts:
            return 0
        return parts[kind] + (self.fixed_ns // 2 if layer.block in self.cut.bounds else 0)

    def add_ns(self, layer: LayerId, sequence_id: int) -> int:
        """See :class:`naspipe.plan.virtual_costs.Costs`."""
        return 0

    def make_ns(self, layer: LayerId) -> int:
        """See :class:`naspipe.plan.virtual_costs.Costs`."""
        return 0

    def between_ns(self, parcels: int = 0) -> int:
        """See :class:`naspipe.plan.virtual_costs.Costs`."""
        return 0

    def message_ns(self, receiver: Task) -> int:
        """See :class:`naspipe.plan.virtual_costs.Costs`."""
        own = self.cut.blocks(StageId(receiver.stage % self.cut.num_stages))
        is_forward = receiver.kind is TaskKind.FORWARD
        return self.outputs[own.start - 1 if is_forward else own.stop - 1]

    def push_ns(self, layer: LayerId, parcel: Parcel = LAYER) -> int:
        """See :class:`naspipe.plan.virtual_costs.Costs`."""
        now_ns, push_ns = self.clock.now_ns, self.push[layer.block]
        if not push_ns:
            return 0
        self._free_ns = max(self._free_ns, now_ns) + push_ns
        return self._free_ns - now_ns

    def copy_ns(self, layer: LayerId) -> int:
        """See :class:`naspipe.plan.virtual_costs.Costs`."""
        return 0


@dataclass(frozen=True, slots=True)
class Setting:
    """A network on groups, and what its passes take."""

    space: Space
    table: CostTable
    """Of one pass."""
    groups: int
    stages: int
    micro_batches: int
    """Of each group."""
    outputs: tuple[int, ...] = ()
    """Nanoseconds of each block's output between stages; none for no time."""
    fixed_ns: int = 0
    """Of a pass on a stage."""

    @property
    def execution(self) -> Execution:
        """How it runs."""
        window = 4 * self.groups * self.micro_batches
        return Execution(groups=self.groups, stages=self.stages, order="paper", window=window)

    def planned(self) -> tuple[Pipeline, Plan]:
        """Steps of this setting, and how naspipe carries them out."""
        counts = self.groups * self.micro_batches
        chain = Chain.of(self.space, frozenset())
        choices = self.space.chain((0,) * len(self.space))
        subnets = (
            Subnet(FIRST_STREAM, SequenceId(number), choices) for number in range(STEPS * counts)
        )
        stream = Stream(chain, tuple(subnets), self.table)
        pipeline = Pipeline(streams=(stream,), steps=Steps(counts))
        return pipeline, plan_pipeline(pipeline, self.execution)

    @property
    def cut(self) -> Partition:
        """Where a group's network is cut."""
        alone = replace(self, groups=1, micro_batches=1)
        return alone.planned()[1].streams[0].partitions[0]

    def step_ns(self, push: tuple[int, ...] = (), launch: str = "layer") -> int:
        """From the end of one step to the end of the next, by naspipe's own controllers.

        Args:
            push: of each block, nanoseconds of its parameters on the link.
            launch: when sums leave, see ``reduction_launch``.
        """
        pipeline, plan = self.planned()
        execution = self.execution.changed(reduction_launch=launch)
        nothing = (0,) * len(self.space)
        outputs, push = self.outputs or nothing, push or nothing
        timing = LinkCosts(self.table, self.cut, outputs, push, self.fixed_ns)
        run = simulate_run(pipeline, plan, execution, timing, timing.clock)
        ends = run.columns.end_ns
        steps = run.columns.sequence_id // pipeline.steps.passes
        return int(ends[steps == STEPS - 1].max() - ends[steps == STEPS - 2].max())


def setting_of(
    network: str, shape: tuple[int, int], micro_batches: int, pays_own: bool = False
) -> Setting:
    """A network of the paper's with IMAGES images in a step.

    Args:
        network: its name.
        shape: groups and stages.
        micro_batches: of each group.
        pays_own: a pass pays 2 * FIXED_NS for each of a stage's own blocks, and not FIXED_NS for
            each of the network's; on 2 stages both are the same, but for the cut.
    """
    groups, stages = shape
    layers, images = layers_of(network), IMAGES / (groups * micro_batches)
    speed, own_ns = DEVICES[network.rstrip("0123456789")], FIXED_NS if pays_own else 0
    rows = {}
    for block, layer in enumerate(layers):
        forward_ns = round(images * layer.operations / speed * 1e9)
        rows[block, 0] = LayerCost(forward_ns + own_ns, BACKWARD * forward_ns + own_ns, 0)
    outputs = tuple(round(images * layer.output_bytes / LINK * 1e9) for layer in layers)
    table, fixed_ns = CostTable(rows), 0 if pays_own else FIXED_NS * len(layers)
    return Setting(space_of(network), table, groups, stages, micro_batches, outputs, fixed_ns)


def push_times(network: str) -> tuple[int, ...]:
    """Nanoseconds of each layer's parameters on the link."""
    return tuple(round(layer.parameter_bytes / LINK * 1e9) for layer in layers_of(network))


def images_per_second(
    network: str, shape: tuple[int, int], micro_batches: int, pays_own: bool = False
) -> float:
    """Of training a network, in whole steps; see :func:`setting_of`."""
    setting = setting_of(network, shape, micro_batches, pays_own)
    return IMAGES / setting.step_ns(push_times(network)) * 1e9
