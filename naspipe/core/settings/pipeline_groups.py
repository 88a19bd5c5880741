"""Settings of how stages compute and reach each other; none is a matter of a run's bits."""

from __future__ import annotations

from dataclasses import dataclass

from naspipe.core.settings.allowed import (
    above,
    at_least,
    between,
    budget,
    byte_count,
    like,
    named_in,
    one_of,
)
from naspipe.core.settings.declare import Flag, check, setting

PARTITIONS = [
    "auto", "balanced", "rotated", "static",
    "free", "pairs", "packed", "layers", "hybrid", "shared",
]  # fmt: skip
"""The names of placements; :func:`naspipe.planning.partitions.register_placement` adds to them."""
ORDERS = ["paper", "critical-path", "latest-start", "auto"]
"""The names of dispatch orders; :func:`naspipe.stage.builder.register_order` adds to them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSettings:
    """How subnets go through the stages."""

    stages: int = setting(
        1,
        "stage processes. One needs neither a second process nor sockets.",
        at_least(1),
        flag=Flag("N"),
        example="4",
    )
    groups: int = setting(
        1,
        "copies of the pipeline. Each computes some passes of every step (passes=accumulate:N).",
        at_least(1),
        flag=Flag("N"),
        example="2",
    )
    window: int = setting(
        0,
        "sequence IDs that may be under way at a time. 0 is 16; with a memory budget 4 steps' more "
        "than there are stages, 16 at most.",
        at_least(0),
        example="3",
    )
    order: str = setting(
        "auto",
        "which of several clear tasks runs first: paper (backwards, and older subnets), "
        "critical-path, latest-start (what delays the end if it waits), or auto (the fastest of "
        "these three: the beginning of the stream is simulated under each).",
        named_in(ORDERS),
        flag=Flag(),
        example="latest-start",
    )
    partition: str = setting(
        "auto",
        "balanced (each subnet its own; layers are mirrored), rotated (so, too, and each subnet "
        "begins one stage further than the one before), auto (the faster one of these two, as "
        "simulated; balanced with a memory budget) or static (one for all). With balanced and "
        "rotated, layers follow their users over the stages. For blocks with teachers of their "
        "own: free (each block anywhere), pairs (consecutive ones), packed (pairs anywhere), "
        "layers (cut anywhere), hybrid (consecutive ones, whose passes several stages may share) "
        "or shared (all stages share all passes).",
        named_in(PARTITIONS),
        flag=Flag(),
        example="static",
    )
    teacher_window: int = setting(
        0,
        "passes that a teacher may be ahead of the student's oldest one. 0 is as it is made: 16 of "
        "a frozen one, those of 4 steps where blocks have teachers of their own.",
        at_least(0),
        example="8",
    )
    teacher_cuts: str = setting(
        "auto",
        "own (a frozen teacher is balanced by itself), joint (it is cut where the student is, "
        "block by block) or auto (as it is made: own). One that follows the student always has "
        "joint ones.",
        one_of("auto", "own", "joint"),
        example="joint",
    )
    relay: str = setting(
        "decoupled",
        "how blocks with teachers of their own get the teacher's outputs: decoupled (handed on, "
        "and nobody waits for a student), barrier (for comparison: no block begins a step before "
        "all are through the one before) or apart (for comparison: each student has the teacher's "
        "blocks up to its own for itself).",
        one_of("decoupled", "barrier", "apart"),
        example="barrier",
    )
    recompute: bool = setting(
        False,
        "keep only each block's input. Its forward is computed again in the backward.",
        flag=Flag(),
        example="true",
    )
    backward: str = setting(
        "whole",
        "whole (a block's backward computes all its gradients), split (first those that are "
        "handed on; those of weights before the layer's update, so that other stages wait less) "
        "or auto (split where the simulation says that it is faster; with a memory budget, which "
        "the simulation leaves out, it is whole).",
        one_of("auto", "whole", "split"),
        flag=Flag(),
        example="split",
    )
    reduction_launch: str = setting(
        "layer",
        "when the sum of a layer's gradients leaves a group: behind the last pass's backward of "
        "the layer, of the partition (all of the stage's blocks), or at the end (all of the "
        "group's backwards of the step). For comparison; layer is never later.",
        one_of("layer", "partition", "end"),
        example="end",
    )
    partly_clear: bool = setting(
        True,
        "start a forward whose first blocks are clear before all of the stage's are.",
        example="false",
    )

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySettings:
    """What layers and activations may occupy."""

    budget: str = setting(
        "",
        "what layers may occupy on each stage's device: 512MiB, or 3x for three subnets. A number "
        "of subnets comes beside the shared layers; empty for no limit. The device of cpu is then "
        "emulated.",
        budget(),
        key="memory_budget",
        flag=Flag("BYTES"),
        example="3x",
    )
    prefetch: bool = setting(
        True,
        "load layers before they are needed. Without, only when the stage waits for them.",
        example="false",
    )
    host: str = setting(
        "",
        "the most host memory of a stage's layers, where there is a memory budget.",
        byte_count(),
        key="host_memory",
        example="2GB",
    )
    activations: str = setting(
        "",
        "the most that the passes under way on a stage may keep. It limits how many are.",
        byte_count(),
        key="activation_memory",
        example="512MiB",
    )

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareSettings:
    """What stages compute on; an emulated device where there is none."""

    device: str = setting(
        "cpu",
        "cpu, cuda or cuda:N. With cuda there is one GPU per stage where there are as many, else "
        "all stages share the GPUs.",
        like(r"cpu|cuda(:[0-9]{1,4})?", "cpu, cuda or cuda:N"),
        flag=Flag(),
        example="cuda",
    )
    bandwidth: float = setting(
        12e9,
        "how fast the emulated device copies, each way. The default is that of PCIe 3.0 x16.",
        above(0),
        unit="bytes per second",
        example="1e9",
    )
    latency: float = setting(
        20e-6,
        "what each of the emulated device's copies takes at least.",
        between(0, 60, "seconds"),
        example="0.001",
    )

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class WireSettings:
    """How stages reach each other."""

    transport: str = setting(
        "ipc",
        "ipc, or tcp on the loopback interface. The ports of tcp are counted from `port`.",
        one_of("ipc", "tcp"),
        example="tcp",
    )
    data_path: str = setting(
        "shm",
        "how inputs of tasks reach another stage. shm: through memory that stages of one host "
        "share, else as with zmq; zmq: through sockets alone; nccl or cuda_ipc: from GPU to GPU "
        "where every stage has one of its own. With cuda_ipc no GPU waits for another one "
        "(it was run on one GPU, nccl on none: docs/gpus.md).",
        one_of("shm", "zmq", "nccl", "cuda_ipc"),
        example="cuda_ipc",
    )
    link_bandwidth: float = setting(
        0.0,
        "an emulated link from each worker to each other one, to see what a slower network would "
        "cost: messages arrive as late as over it. 0 for none. On one machine only.",
        at_least(0),
        unit="bytes per second",
        example="1e9",
    )
    link_latency: float = setting(
        0.0,
        "what a message takes over the emulated link beside its bytes.",
        between(0, 60, "seconds"),
        example="0.001",
    )
    port: int = setting(
        29600,
        "first port of the tcp transport. One for each stage and one for the launcher; under "
        "torchrun two for each stage.",
        between(1024, 65000),
        example="30000",
    )
    interface: str = setting(
        "",
        "under torchrun, the network interface whose address every host listens on. Empty for "
        "the one that leads to rank 0's host.",
        example="eth0",
    )

    def __post_init__(self) -> None:
        check(self)
