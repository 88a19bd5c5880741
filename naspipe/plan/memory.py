"""Memory budgets of the stages: the bytes that each stage's layers may occupy on its device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from naspipe.config.errors import ConfigError
from naspipe.config.execution import Execution
from naspipe.config.ids import LayerId, StageId, StreamId, Subnet
from naspipe.config.partition import Partition
from naspipe.config.rules import BlockRule, most_copies, rule_of, rule_with_state, steps_behind
from naspipe.config.text import parse_bytes, parse_subnets
from naspipe.engine.residency import ResidencyManager
from naspipe.plan.costs import LayerSize, SizeTable


@dataclass(frozen=True, slots=True)
class DeviceSizes:
    """Layer sizes that include the copies needed by readers of older versions."""

    table: SizeTable
    rules: tuple[BlockRule, ...]

    def of(self, block: int, candidate: int, stream: int = 0) -> LayerSize:
        size = self.table.of(block, candidate)
        layer = LayerId(StreamId(stream), block, candidate)
        copies = most_copies(rule_of(self.rules, layer)) * size.parameter_bytes
        return size._replace(state_bytes=size.state_bytes + copies)

    def on_host(self, block: int, candidate: int, stream: int = 0) -> int:
        """Return the bytes of a layer in host memory, which holds no copies of older versions."""
        return self.table.of(block, candidate).state_bytes


@dataclass(frozen=True, slots=True)
class StreamSizes:
    """Layer sizes of streams that train different spaces."""

    streams: tuple[DeviceSizes, ...]

    def of(self, block: int, candidate: int, stream: int = 0) -> LayerSize:
        return self.streams[stream].of(block, candidate)

    def on_host(self, block: int, candidate: int, stream: int = 0) -> int:
        return self.streams[stream].on_host(block, candidate)


Sizes = DeviceSizes | StreamSizes


@dataclass(frozen=True, slots=True)
class StageNeed:
    """The bytes that the layers of one stage take."""

    permanent_bytes: int
    """Its layers that stay on the device, mainly the shared ones."""
    largest_bytes: int
    subnet_bytes: float
    """The other layers of one subnet, averaged over the subnets that have blocks there."""
    host_bytes: int
    """All layers that the stream uses there, in host memory."""

    @property
    def least_bytes(self) -> int:
        return self.permanent_bytes + self.largest_bytes


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """A byte budget for each stage."""

    budgets: tuple[int, ...]
    needs: tuple[StageNeed, ...]
    sizes: Sizes
    permanent: frozenset[tuple[int, int]]
    """Streams and blocks whose layers are never evicted."""


def plan_memory(
    budget: str,
    subnets: Sequence[Subnet],
    partitions: Sequence[Partition],
    sizes: Sizes,
    stays: Sequence[Sequence[bool]],
    is_sample: bool = False,
) -> MemoryPlan:
    """Convert a budget as written by users into bytes for each stage.

    ``subnets`` may be those of several streams, one after the other. If they are a sample that uses
    every layer, each stage can hold the largest layer of all, because any layer may move to it.
    ``stays`` holds, for each block of each stream, whether its layers are never evicted; see
    :func:`staying_blocks`.

    ``3x`` is the stage's layers that stay plus three times what a subnet has there on average, but
    never less than the minimum that the stage can run with, and one byte if it has no layers;
    ``512MiB`` is the same for every stage.
    """
    found = []
    for stage in map(StageId, range(partitions[0].num_stages)):
        staying: dict[LayerId, int] = {}
        on_host: dict[LayerId, int] = {}
        largest = total = num_there = 0
        for subnet, partition in zip(subnets, partitions, strict=True):
            num_there += bool(partition.blocks(stage))
            for block in partition.blocks(stage):
                layer = subnet.layer(block)
                size_bytes = sizes.of(block, layer.candidate, subnet.stream).state_bytes
                on_host[layer] = sizes.on_host(block, layer.candidate, subnet.stream)
                if stays[subnet.stream][block]:
                    staying[layer] = size_bytes
                else:
                    largest = max(largest, size_bytes)
                    total += size_bytes
        mean = total / max(1, num_there)
        found.append(StageNeed(sum(staying.values()), largest, mean, sum(on_host.values())))
    needs = tuple(found)
    if is_sample:
        largest = max(need.largest_bytes for need in needs)
        needs = tuple(replace(need, largest_bytes=largest) for need in needs)
    count = parse_subnets(budget)
    budgets = tuple(
        max(1, need.least_bytes, int(need.permanent_bytes + count * need.subnet_bytes))
        if count
        else parse_bytes(budget)
        for need in needs
    )
    permanent = frozenset(
        (stream, block)
        for stream, blocks in enumerate(stays)
        for block, is_staying in enumerate(blocks)
        if is_staying
    )
    return MemoryPlan(budgets, needs, sizes, permanent)


def staying_blocks(
    rules: Sequence[BlockRule], is_shared: Sequence[bool], groups: int
) -> tuple[bool, ...]:
    """Return, for each block, whether its layers stay on the device once they are loaded.

    Layers that every subnet uses stay, because they are always needed next. With several groups, so
    do layers whose older versions are read (such as those of a lagging momentum teacher): after a
    group has sent its part of a step on, its stage has no current version of the layer that could
    be loaded again, although subnets still read the older versions there.
    """
    return tuple(
        shared or (groups > 1 and bool(steps_behind(rule_with_state(rule))))
        for rule, shared in zip(rules, is_shared, strict=True)
    )


def check_host_memory(limit: str, needs: Sequence[StageNeed]) -> None:
    """Check that all layers of the stream fit in host memory, on every stage.

    Raises:
        ConfigError: if they exceed the limit on some stage.
    """
    limit_bytes = parse_bytes(limit)
    stage, need = max(enumerate(needs), key=lambda pair: (pair[1].host_bytes, -pair[0]))
    if limit and need.host_bytes > limit_bytes:
        raise ConfigError(
            f"host_memory: expected at least {need.host_bytes} bytes, which the layers of this "
            f"stream take on stage {stage} with their optimizer state, found {limit_bytes}; raise "
            f"the limit, or choose more stages, a smaller scale or an optimizer with less state"
        )


def residency_of(
    memory: MemoryPlan | None, stage: StageId, execution: Execution
) -> ResidencyManager | None:
    """Return the residency manager of a stage; None if every layer stays on the device."""
    if memory is None:
        return None
    return ResidencyManager(
        memory.budgets[stage],
        memory.sizes,
        memory.permanent,
        prefetches=execution.memory.prefetch,
    )
