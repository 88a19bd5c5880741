"""How a run is carried out: groups of settings, none of which changes the bits of a run.

Users know the settings by their keys, which do not depend on the group.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Self

from naspipe.config.errors import ConfigError
from naspipe.config.settings import (
    Checked,
    Flag,
    above,
    at_least,
    between,
    budget,
    byte_count,
    declared,
    expect,
    group,
    like,
    named_in,
    one_of,
    setting,
    unknown_key,
)

PARTITIONS = [
    "auto", "balanced", "rotated", "static",
    "free", "pairs", "packed", "layers", "hybrid", "shared",
]  # fmt: skip
"""Names of placements; :func:`naspipe.plan.partitions.register_placement` adds to them."""
ORDERS = ["paper", "critical-path", "latest-start", "auto"]
"""Names of dispatch orders; :func:`naspipe.engine.builder.register_order` adds to them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSettings(Checked):
    """How subnets pass through the stages."""

    stages: int = setting(
        1,
        "number of stage processes. A single stage needs neither a second process nor sockets.",
        at_least(1),
        flag=Flag("N"),
        example="4",
    )
    groups: int = setting(
        1,
        "number of copies of the pipeline (data-parallel groups). Each group computes some of "
        "the passes of every step (passes=accumulate:N).",
        at_least(1),
        flag=Flag("N"),
        example="2",
    )
    window: int = setting(
        0,
        "maximum number of sequence IDs in flight at a time. 0 selects 16 or, with a memory "
        "budget, the passes of four more steps than there are stages, but at most 16.",
        at_least(0),
        example="3",
    )
    order: str = setting(
        "auto",
        "rule that selects which of several ready tasks runs first: paper (backwards first, then "
        "older subnets), critical-path (the task with the longest chain of dependent tasks), "
        "latest-start (the task that has to start earliest so as not to delay the end) or auto "
        "(the fastest of these three when the beginning of the stream is simulated under each).",
        named_in(ORDERS),
        flag=Flag(),
        example="latest-start",
    )
    partition: str = setting(
        "auto",
        "how the blocks of each subnet are placed on stages: balanced (each subnet has its own "
        "partition; layers are mirrored), rotated (as balanced, but each subnet begins one stage "
        "further than the previous one), auto (the faster of these two in a simulation; balanced "
        "with a memory budget) or static (one partition for all subnets). With balanced and "
        "rotated, layers move between stages to follow the subnets that use them. For blocks "
        "with a teacher of their own: free (each block on any stage), pairs (consecutive pairs "
        "of a teacher block and its student), packed (such pairs on any stage), layers "
        "(consecutive layers, cut anywhere), hybrid (consecutive pairs, whose passes several "
        "stages may share) or shared (all pairs on every stage; the stages share the passes).",
        named_in(PARTITIONS),
        flag=Flag(),
        example="static",
    )
    teacher_window: int = setting(
        0,
        "maximum number of passes that a teacher may be ahead of the student's oldest pass. 0 "
        "keeps the value that the teacher was created with: by default 16 for a frozen teacher, "
        "and the passes of 4 steps if blocks have teachers of their own.",
        at_least(0),
        example="8",
    )
    teacher_cuts: str = setting(
        "auto",
        "where the blocks of a teacher are divided among the stages: own (a frozen teacher is "
        "balanced by itself), joint (the teacher is cut where the student is, block by block) or "
        "auto (as the teacher was created; own by default). A momentum teacher always has joint "
        "cuts.",
        one_of("auto", "own", "joint"),
        example="joint",
    )
    relay: str = setting(
        "decoupled",
        "how blocks with teachers of their own receive the teacher's outputs: decoupled (outputs "
        "are forwarded, and no block waits for a student), barrier (for comparison: no block "
        "starts a step before all blocks have finished the previous one) or apart (for "
        "comparison: each student has its own copy of the teacher's blocks up to and including "
        "its own).",
        one_of("decoupled", "barrier", "apart"),
        example="barrier",
    )
    recompute: bool = setting(
        False,
        "activation checkpointing: keep only the input of each block, and recompute its forward "
        "in the backward.",
        flag=Flag(),
        example="true",
    )
    backward: str = setting(
        "whole",
        "how the backward of a block is computed: whole (all gradients at once), split (first "
        "the gradients that are passed on; the weight gradients by the time of the layer's "
        "update, so that other stages wait less) or auto (split if it is faster in a simulation; "
        "whole with a memory budget, which the simulation does not model).",
        one_of("auto", "whole", "split"),
        flag=Flag(),
        example="split",
    )
    reduction_launch: str = setting(
        "layer",
        "when a group sends the sum of a layer's gradients: layer (after the last pass's "
        "backward of the layer), partition (after its backward of all blocks on the stage) or "
        "end (after all backwards of the group in the step). partition and end are for "
        "comparison; layer is never later.",
        one_of("layer", "partition", "end"),
        example="end",
    )
    partly_clear: bool = setting(
        True,
        "start a forward as soon as the dependencies of its first blocks are satisfied, without "
        "waiting for those of all blocks on the stage.",
        example="false",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySettings(Checked):
    """How much memory layers and activations may use."""

    budget: str = setting(
        "",
        "maximum device memory for the layers of each stage: 512MiB, or 3x for the size of three "
        "subnets. A number of subnets does not include the shared layers, which are added to it; "
        "empty for no limit. With device=cpu, a budget emulates a device.",
        budget(),
        key="memory_budget",
        flag=Flag("BYTES"),
        example="3x",
    )
    prefetch: bool = setting(
        True,
        "load layers before they are needed. Otherwise, a layer is loaded only when the stage "
        "waits for it.",
        example="false",
    )
    host: str = setting(
        "",
        "maximum host memory for the layers of each stage and their optimizer state, with a "
        "memory budget.",
        byte_count(),
        key="host_memory",
        example="2GB",
    )
    activations: str = setting(
        "",
        "maximum memory for the activations that the passes in flight on a stage keep. It limits "
        "the number of passes in flight.",
        byte_count(),
        key="activation_memory",
        example="512MiB",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareSettings(Checked):
    """The device that stages compute on, or the emulated one."""

    device: str = setting(
        "cpu",
        "device to compute on: cpu, cuda or cuda:N. With cuda, each stage has its own GPU if "
        "there are enough; otherwise, all stages share the GPUs.",
        like(r"cpu|cuda(:[0-9]{1,4})?", "cpu, cuda or cuda:N"),
        flag=Flag(),
        example="cuda",
    )
    bandwidth: float = setting(
        12e9,
        "copy bandwidth of the emulated device in each direction. The default is that of PCIe "
        "3.0 x16.",
        above(0),
        unit="bytes per second",
        example="1e9",
    )
    latency: float = setting(
        20e-6,
        "minimum duration of each copy on the emulated device.",
        between(0, 60, "seconds"),
        example="0.001",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WireSettings(Checked):
    """How stages exchange messages and tensors."""

    transport: str = setting(
        "ipc",
        "transport of messages: ipc, or tcp on the loopback interface. The ports of tcp are "
        "numbered from `port` on.",
        one_of("ipc", "tcp"),
        example="tcp",
    )
    data_path: str = setting(
        "shm",
        "how the inputs of tasks are sent to another stage. shm uses shared memory between "
        "stages on the same host, and is otherwise the same as zmq; zmq uses sockets only; nccl "
        "and cuda_ipc copy from GPU to GPU if every stage has its own GPU. With cuda_ipc, no GPU "
        "waits for another one (cuda_ipc has been tested on one GPU, nccl on none: docs/gpus.md).",
        one_of("shm", "zmq", "nccl", "cuda_ipc"),
        example="cuda_ipc",
    )
    link_bandwidth: float = setting(
        0.0,
        "bandwidth of an emulated link between each pair of workers, which delays messages as a "
        "slower network would; 0 for none. Available only on a single machine.",
        at_least(0),
        unit="bytes per second",
        example="1e9",
    )
    link_latency: float = setting(
        0.0,
        "latency of each message on the emulated link, in addition to the time for its bytes.",
        between(0, 60, "seconds"),
        example="0.001",
    )
    port: int = setting(
        29600,
        "first port of the tcp transport. One port is used for each stage and one for the "
        "launcher; under torchrun, two for each stage.",
        between(1024, 65000),
        example="30000",
    )
    interface: str = setting(
        "",
        "under torchrun, the network interface on whose address every host listens. Empty for "
        "the interface that leads to the host of rank 0.",
        example="eth0",
    )


MAX_TIMEOUT_SECONDS = 86_400.0
"""One day."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchSettings(Checked):
    """When a stage is treated as failed, and what follows."""

    timeout_seconds: float = setting(
        300.0,
        "maximum time that a stage may spend on one block, or wait for a message, before it is "
        "treated as failed.",
        above(0, MAX_TIMEOUT_SECONDS),
        unit="seconds",
        example="0.5",
    )
    silence_seconds: float = setting(
        30.0,
        "maximum time that the process of a stage may give no sign of life before it is treated "
        "as failed.",
        above(0, MAX_TIMEOUT_SECONDS),
        unit="seconds",
        example="7",
    )
    max_restarts: int = setting(
        0,
        "maximum number of times that a run restarts itself from its last checkpoint after a "
        "stage has failed.",
        at_least(0),
        flag=Flag("N"),
        example="1",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSettings(Checked):
    """When checkpoints are written, and how many are kept."""

    every_steps: int = setting(
        0,
        "number of optimizer steps of a stream between checkpoints; 0 for no intermediate "
        "checkpoints.",
        at_least(0),
        key="checkpoint_every",
        unit="steps",
        flag=Flag("STEPS"),
        example="50",
    )
    keep: int = setting(
        2,
        "number of checkpoints to keep; the newest ones are kept.",
        at_least(1),
        key="keep_checkpoints",
        example="3",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationSettings(Checked):
    """How the supernet is validated during a run. Recipe files may contain these settings."""

    every_steps: int = setting(
        0,
        "number of optimizer steps between validations of a few subnets on held-out data, each "
        "after a checkpoint; 0 for no validation. Validation changes no bit of the training.",
        at_least(0),
        key="validate_every",
        unit="steps",
        flag=Flag("STEPS"),
        example="100",
    )
    subnets: str = setting(
        "4",
        "subnets to validate: a number of subnets, which are drawn from the seed, or file:PATH "
        "with one JSON list of choices per line.",
        like(r"[1-9][0-9]{0,5}|file:.+", "a number of subnets, as in 4, or file:PATH"),
        key="validate_subnets",
        flag=Flag("K|file:PATH"),
        example="8",
    )
    batches: int = setting(
        8,
        "maximum number of held-out batches on which each subnet is evaluated; 0 for all.",
        at_least(0),
        key="validate_batches",
        unit="batches",
        example="2",
    )
    calibration_batches: int = setting(
        4,
        "number of training batches from which running statistics are recomputed; 0 to use those "
        "of the run.",
        at_least(0),
        key="validate_calibrate",
        unit="batches",
        example="0",
    )
    ema: bool = setting(
        False, "evaluate the moving averages of the weights.", key="validate_ema", example="true"
    )
    probe: str = setting(
        "none",
        "evaluate features instead of the loss: none, knn (the vote of the 20 nearest "
        "neighbours) or ridge (a linear probe in closed form). Use it for networks that learn "
        "without labels.",
        one_of("none", "knn", "ridge"),
        key="validate_probe",
        example="knn",
    )
    features: str = setting(
        "",
        "label of the block whose output is used as features; by default, the block before the "
        "one called projector or, without one, the block before the last. Outputs are averaged "
        "over pixels or tokens.",
        key="validate_features",
        example="stem",
    )
    probe_batches: int = setting(
        32,
        "number of training batches on which a probe is fitted, with plain samples instead of "
        "views.",
        at_least(1),
        key="validate_probe_batches",
        unit="batches",
        example="8",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifySettings(Checked):
    """How a run is compared with its plain loop."""

    verify: str = setting(
        "auto",
        "compare the first steps with a plain loop that runs your own modules, data and loss in "
        "a process alongside the run, and stop the run if one bit differs: auto, a number of "
        "steps, all, or 0 for none. auto compares 3 steps more than the longest lag, but at most "
        "a sixteenth of the run and at least 4 steps, and gives up if they take too long; with "
        "the other values, the run waits for the plain loop. A search compares the scores of its "
        "first and its best subnet instead, unless the value is 0.",
        like(r"auto|all|[0-9]{1,6}", "auto, all or a number of steps"),
        flag=Flag("auto|all|STEPS"),
        example="0",
    )

    def steps(self, lag: int, steps: int) -> int:
        """Return the number of steps to compare, of ``steps``; ``lag`` is the longest lag."""
        if self.verify == "all":
            return steps
        if self.verify == "auto":
            return min(max(4, min(lag + 3, steps // 16)), steps)
        return min(int(self.verify), steps)

    @property
    def waits(self) -> bool:
        """True if the run waits for the plain loop, however long it takes."""
        return self.verify != "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordSettings(Checked):
    """Optional records, in addition to those of every run."""

    access_log: str = setting(
        "full",
        "accesses to record: full, sampled:N (those of every Nth step) or off. Without a full "
        "log, the order of a finished run is not checked, and its bubble ratio is unknown.",
        like(r"full|off|sampled:[1-9][0-9]{0,6}", "full, sampled:N or off"),
        example="sampled:100",
    )
    digests: bool = setting(
        False, "record a digest of the bytes after every WRITE.", flag=Flag(), example="true"
    )
    tensorboard: bool = setting(
        False,
        "write RUN/tensorboard/ in addition to RUN/metrics.jsonl (requires the extra tensorboard).",
        flag=Flag(),
        example="true",
    )
    events: bool = setting(
        False,
        "record the input of every controller so that it can be replayed.",
        key="record_events",
        example="true",
    )
    metrics_port: int = setting(
        0,
        "port on which Prometheus metrics are served while the run is active, at "
        "http://ADDRESS:PORT/metrics (requires the extra prometheus); 0 for none.",
        between(0, 65000),
        example="9400",
    )
    metrics_address: str = setting(
        "127.0.0.1",
        "address on which the metrics are served: an IPv4 address of the launcher's host. There "
        "is no authentication.",
        like(r"[0-9]{1,3}(\.[0-9]{1,3}){3}", "an IPv4 address, as in 10.0.0.7"),
        example="0.0.0.0",
    )

    @property
    def logged_steps(self) -> int:
        """Record the accesses of every Nth step; 0 for none."""
        if self.access_log in ("full", "off"):
            return int(self.access_log == "full")
        return int(self.access_log.removeprefix("sampled:"))


PIPELINE, INLINE, SERVICE, FILE = "pipeline", "inline", "service", "file:"


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelSettings(Checked):
    """Where and when the labels of a frozen teacher are computed."""

    source: str = setting(
        PIPELINE,
        "where the labels of a frozen teacher are computed: pipeline (the teacher's blocks run "
        "on the stages), inline (on the stage of the loss), service (in processes that may join "
        "and leave) or file:PATH (read from a file written by naspipe teach --to PATH).",
        like(r"pipeline|inline|service|file:.+", "pipeline, inline, service or file:PATH"),
        key="labels",
        flag=Flag("SOURCE"),
        example="inline",
    )

    teachers: int = setting(
        0,
        "with labels=service: number of teachers that the run starts itself.",
        at_least(0),
        flag=Flag("N"),
        example="3",
    )
    teachers_most: int = setting(
        0,
        "maximum number of teachers that the run may have when labels run out; 0 for no more "
        "than it starts with.",
        at_least(0),
        example="5",
    )
    teacher_stages: int = setting(
        1,
        "number of processes among which the blocks of each of the run's own teachers are "
        "divided, if one device is too small; with cuda, each process needs its own GPU.",
        at_least(1),
        example="2",
    )
    registry: str = setting(
        "",
        "registry of teachers that were started outside the run: redis://HOST[:PORT][/DB], or "
        "tcp://ADDRESS:PORT, on which the run listens. Empty to use only the run's own teachers.",
        like(r"(rediss?://.+|tcp://.+:\d+)?", "redis://HOST, tcp://ADDRESS:PORT or nothing"),
        key="teacher_registry",
        example="redis://localhost:6379",
    )
    keys: str = setting(
        "",
        "file with the public keys of teachers that were started outside the run, one per line.",
        key="teacher_keys",
        example="teachers.keys",
    )
    inputs: str = setting(
        "numbers",
        "content of a request for a label: numbers (the number of the batch, if teachers have "
        "the data) or sent (the part of the batch that the teacher takes as input).",
        one_of("numbers", "sent"),
        key="teacher_inputs",
        example="sent",
    )
    ahead: int = setting(
        64,
        "maximum number of labels that are requested or waiting to be used. No labels are "
        "requested ahead beyond it.",
        at_least(1),
        key="labels_ahead",
        unit="labels",
        example="32",
    )
    again: int = setting(
        48,
        "number of remaining labels at which requests ahead resume; must be less than "
        "labels_ahead.",
        at_least(0),
        key="labels_again",
        unit="labels",
        example="8",
    )
    deadline: float = setting(
        3.0,
        "multiple of a teacher's measured response time after which a label is also requested "
        "from another teacher.",
        above(1.0, 1000.0),
        key="label_deadline",
        example="2",
    )
    audit: int = setting(
        64,
        "one label in this many is computed by two teachers and used if both agree; 0 for no "
        "audits.",
        at_least(0),
        key="label_audit",
        example="16",
    )
    ttl_seconds: float = setting(
        6.0,
        "time without a sign of life after which a teacher is treated as gone.",
        above(0, 86_400.0),
        key="teacher_ttl",
        unit="seconds",
        example="60",
    )
    pace_seconds: float = setting(
        0.0,
        "minimum response time of the run's own teachers, for measurements.",
        between(0, 3600.0),
        key="teacher_pace",
        unit="seconds",
        example="0.05",
    )

    def check_together(self) -> None:
        """Check settings that depend on one another, once all are known."""
        expect(
            self.again < self.ahead, "labels_again", f"less than labels_ahead={self.ahead}",
            self.again,
        )  # fmt: skip
        has_any = bool(self.teachers or self.registry)
        if self.source == SERVICE and not has_any:
            raise ConfigError("labels=service: expected --teachers N or teacher_registry with it")
        if self.source != SERVICE and has_any:
            raise ConfigError(
                f"teachers, teacher_registry: expected labels=service with them, found "
                f"labels={self.source:.80}; set teachers=0 and teacher_registry= otherwise"
            )
        most, allowed = self.teachers_most, f"0, or {self.teachers} or more, as teachers says"
        expect(not most or most >= self.teachers, "teachers_most", allowed, most)


@dataclass(frozen=True, slots=True, kw_only=True, init=False)
class Execution:
    """How a run is carried out; it never changes the bits.

    It is made from settings by their keys, as in ``Execution(stages=2, memory_budget="3x")``, from
    groups, or from both. Manifests use the same keys.
    """

    pipeline: PipelineSettings = group(PipelineSettings(), "pipeline")
    teaching: LabelSettings = group(LabelSettings(), "teacher labels")
    memory: MemorySettings = group(MemorySettings(), "memory")
    hardware: HardwareSettings = group(HardwareSettings(), "hardware")
    wire: WireSettings = group(WireSettings(), "communication")
    watch: WatchSettings = group(WatchSettings(), "failures")
    checkpoints: CheckpointSettings = group(CheckpointSettings(), "checkpoints")
    validation: ValidationSettings = group(ValidationSettings(), "validation", is_of_recipes=True)
    verification: VerifySettings = group(VerifySettings(), "verification")
    records: RecordSettings = group(RecordSettings(), "records")

    def __init__(self, **values: Any) -> None:
        known = declared(type(self))
        nodes = {each.name: values.pop(each.name, each.default) for each in fields(self)}
        given: dict[str, dict[str, Any]] = {name: {} for name in nodes}
        for key, value in values.items():
            if key not in known:
                raise unknown_key(key, known)
            given[known[key].group][known[key].name] = value
        for each in fields(self):
            node, kind = nodes[each.name], type(each.default)
            expect(isinstance(node, kind), each.name, kind.__name__, node)
            object.__setattr__(self, each.name, replace(node, **given[each.name]))
        every, apart = self.validation.every_steps, self.checkpoints.every_steps
        allowed = f"a multiple of checkpoint_every, {apart}, as checkpoints are what is judged"
        expect(not apart or every % apart == 0, "validate_every", allowed, every)

    @property
    def workers(self) -> int:
        """Number of stages of all groups; stage j of group g is worker g * stages + j."""
        return self.pipeline.groups * self.pipeline.stages

    @property
    def cut_every_steps(self) -> int:
        """Steps of a stream between checkpoints, which validations also need."""
        return self.checkpoints.every_steps or self.validation.every_steps

    def changed(self, **values: Any) -> Self:
        """Return a copy with other values, by the keys of settings or as whole groups."""
        return replace(self, **values)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values by key, for the manifest."""
        known = declared(type(self))
        return {key: getattr(getattr(self, each.group), each.name) for key, each in known.items()}


def first_gpu(device: str) -> str:
    """Return the device for a measurement that represents all stages."""
    return "cuda:0" if device == "cuda" else device
