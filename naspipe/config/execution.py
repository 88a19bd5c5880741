"""How a run is carried out: groups of settings, which users know by their keys.

The groups are of how stages compute and reach each other, of how a run is watched, kept, judged and
recorded, and of where a teacher's labels come from. None of them is a matter of a run's bits.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Self

from naspipe.config.errors import ConfigError
from naspipe.config.settings import (
    Flag,
    above,
    at_least,
    between,
    budget,
    byte_count,
    check,
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


MAX_TIMEOUT_SECONDS = 86_400.0
"""A day."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchSettings:
    """When a stage is given up, and what is done then."""

    timeout_seconds: float = setting(
        300.0,
        "how long a stage may be at one block, or wait for a message, before it is given up.",
        above(0, MAX_TIMEOUT_SECONDS),
        unit="seconds",
        example="0.5",
    )
    silence_seconds: float = setting(
        30.0,
        "how long a stage's process may give no sign of life before it is given up.",
        above(0, MAX_TIMEOUT_SECONDS),
        unit="seconds",
        example="7",
    )
    max_restarts: int = setting(
        0,
        "how often a run whose stage failed goes on by itself from its last checkpoint.",
        at_least(0),
        flag=Flag("N"),
        example="1",
    )

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSettings:
    """What a run can be resumed from."""

    every_steps: int = setting(
        0,
        "optimizer steps of a stream from one checkpoint to the next; 0 for none on the way.",
        at_least(0),
        key="checkpoint_every",
        unit="steps",
        flag=Flag("STEPS"),
        example="50",
    )
    keep: int = setting(
        2,
        "how many checkpoints are kept, the newest.",
        at_least(1),
        key="keep_checkpoints",
        example="3",
    )

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationSettings:
    """How the supernet is judged on the way. Papers name these, so recipe files may, too."""

    every_steps: int = setting(
        0,
        "judge a few subnets on held-out data every so many optimizer steps, behind a checkpoint; "
        "0 for never. Changes no bit of the training.",
        at_least(0),
        key="validate_every",
        unit="steps",
        flag=Flag("STEPS"),
        example="100",
    )
    subnets: str = setting(
        "4",
        "so many, drawn from the seed, or file:PATH with one JSON list of choices a line.",
        like(r"[1-9][0-9]{0,5}|file:.+", "a number of subnets, as in 4, or file:PATH"),
        key="validate_subnets",
        flag=Flag("K|file:PATH"),
        example="8",
    )
    batches: int = setting(
        8,
        "held-out batches that each is judged on, or all where there are fewer; 0 for all.",
        at_least(0),
        key="validate_batches",
        unit="batches",
        example="2",
    )
    calibration_batches: int = setting(
        4,
        "training batches that running statistics are taken from; 0 for the run's own.",
        at_least(0),
        key="validate_calibrate",
        unit="batches",
        example="0",
    )
    ema: bool = setting(
        False,
        "judge by the moving averages of the weights.",
        key="validate_ema",
        example="true",
    )
    probe: str = setting(
        "none",
        "judge features in place of the loss: none, knn (the vote of the 20 nearest) or ridge (a "
        "linear probe in closed form). For networks that learn without labels.",
        one_of("none", "knn", "ridge"),
        key="validate_probe",
        example="knn",
    )
    features: str = setting(
        "",
        "label of the block whose output the features are; by default that before the block called "
        "projector, or else before the last. Pixels and tokens are averaged.",
        key="validate_features",
        example="stem",
    )
    probe_batches: int = setting(
        32,
        "training batches, as they are and not as views, that a probe learns from.",
        at_least(1),
        key="validate_probe_batches",
        unit="batches",
        example="8",
    )

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifySettings:
    """How a run is compared with its plain loop."""

    verify: str = setting(
        "auto",
        "compare the first steps with a plain loop that runs your own modules, data and loss in a "
        "process alongside the run, and stop the run if one bit differs: auto, a number of steps, "
        "all, or 0 for none. auto takes 3 steps more than the longest lag, but at most a sixteenth "
        "of the run and at least 4 steps, and gives up if they take long; the other values wait "
        "for the plain loop. A search compares the scores of its first and its best subnet "
        "instead, unless this is 0.",
        like(r"auto|all|[0-9]{1,6}", "auto, all or a number of steps"),
        flag=Flag("auto|all|STEPS"),
        example="0",
    )

    def __post_init__(self) -> None:
        check(self)

    def steps(self, lag: int, steps: int) -> int:
        """How many steps are compared.

        Args:
            lag: the longest one of any layer, in steps.
            steps: that the run still has to train.
        """
        if self.verify == "all":
            return steps
        if self.verify == "auto":
            return min(max(4, min(lag + 3, steps // 16)), steps)
        return min(int(self.verify), steps)

    @property
    def waits(self) -> bool:
        """Whether the run waits for the plain loop, however long it takes."""
        return self.verify != "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordSettings:
    """What is recorded beside what every run records."""

    access_log: str = setting(
        "full",
        "which accesses are recorded: full, sampled:N (those of every N-th step) or off. Without "
        "all of them, a finished run's order is not checked, and its bubble ratio not known.",
        like(r"full|off|sampled:[1-9][0-9]{0,6}", "full, sampled:N or off"),
        example="sampled:100",
    )
    digests: bool = setting(
        False,
        "record a digest of the bytes that every WRITE leaves.",
        flag=Flag(),
        example="true",
    )
    tensorboard: bool = setting(
        False,
        "write RUN/tensorboard/, beside RUN/metrics.jsonl (needs the extra tensorboard).",
        flag=Flag(),
        example="true",
    )
    events: bool = setting(
        False,
        "record every controller's input, so that it can be replayed.",
        key="record_events",
        example="true",
    )
    metrics_port: int = setting(
        0,
        "answer Prometheus at http://ADDRESS:PORT/metrics while the run goes on (needs the extra "
        "prometheus); 0 for never.",
        between(0, 65000),
        example="9400",
    )
    metrics_address: str = setting(
        "127.0.0.1",
        "where it is answered: an IPv4 address of the launcher's host. Nobody has to log in.",
        like(r"[0-9]{1,3}(\.[0-9]{1,3}){3}", "an IPv4 address, as in 10.0.0.7"),
        example="0.0.0.0",
    )

    def __post_init__(self) -> None:
        check(self)

    @property
    def logged_steps(self) -> int:
        """Accesses of each so manyth step are recorded; 0 for those of none."""
        if self.access_log in ("full", "off"):
            return int(self.access_log == "full")
        return int(self.access_log.removeprefix("sampled:"))


PIPELINE, INLINE, SERVICE, FILE = "pipeline", "inline", "service", "file:"


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelSettings:
    """Who computes what a frozen teacher says of each batch, and when."""

    source: str = setting(
        PIPELINE,
        "who computes a frozen teacher's labels: pipeline (its blocks run on the stages), inline "
        "(the stage of the loss), service (processes that may come and go) or file:PATH (they are "
        "read, as naspipe teach --to PATH wrote them).",
        like(r"pipeline|inline|service|file:.+", "pipeline, inline, service or file:PATH"),
        key="labels",
        flag=Flag("SOURCE"),
        example="inline",
    )

    teachers: int = setting(
        0,
        "with labels=service: teachers that the run starts itself.",
        at_least(0),
        flag=Flag("N"),
        example="3",
    )
    teachers_most: int = setting(
        0,
        "so many it may have when labels run out; 0 for no more than it starts with.",
        at_least(0),
        example="5",
    )
    teacher_stages: int = setting(
        1,
        "processes over which the blocks of each of the run's own teachers are cut, where one "
        "device is too small; with cuda a GPU for each.",
        at_least(1),
        example="2",
    )
    registry: str = setting(
        "",
        "where teachers that others started are found: redis://HOST[:PORT][/DB] or tcp://ADDRESS:"
        "PORT, on which the run listens. Empty for the run's own teachers alone.",
        like(r"(rediss?://.+|tcp://.+:\d+)?", "redis://HOST, tcp://ADDRESS:PORT or nothing"),
        key="teacher_registry",
        example="redis://localhost:6379",
    )
    keys: str = setting(
        "",
        "file of the public keys of teachers that others started, one on a line.",
        key="teacher_keys",
        example="teachers.keys",
    )
    inputs: str = setting(
        "numbers",
        "what a request holds: numbers (teachers have the data) or sent (what the teacher takes of "
        "the batch).",
        one_of("numbers", "sent"),
        key="teacher_inputs",
        example="sent",
    )
    ahead: int = setting(
        64,
        "labels that may be asked for and waiting together. There asking ahead stops.",
        at_least(1),
        key="labels_ahead",
        unit="labels",
        example="32",
    )
    again: int = setting(
        48,
        "asking ahead goes on when so many are left; below labels_ahead.",
        at_least(0),
        key="labels_again",
        unit="labels",
        example="8",
    )
    deadline: float = setting(
        3.0,
        "a label is asked of another teacher, too, after so many times its teacher's time.",
        above(1.0, 1000.0),
        key="label_deadline",
        example="2",
    )
    audit: int = setting(
        64,
        "one label in so many is made by two teachers and used when both agree; 0 for none.",
        at_least(0),
        key="label_audit",
        example="16",
    )
    ttl_seconds: float = setting(
        6.0,
        "a teacher that gives no sign of life for so long is gone.",
        above(0, 86_400.0),
        key="teacher_ttl",
        unit="seconds",
        example="60",
    )
    pace_seconds: float = setting(
        0.0,
        "the run's own teachers answer no sooner, for measurements.",
        between(0, 3600.0),
        key="teacher_pace",
        unit="seconds",
        example="0.05",
    )

    def __post_init__(self) -> None:
        check(self)

    def check_together(self) -> None:
        """What several of them must be together, once all are known.

        Raises:
            ConfigError: naming what does not fit.
        """
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
    """How a run is carried out: never a matter of its bits.

    Made from settings by their keys, as in ``Execution(stages=2, memory_budget="3x")``, from
    groups, or from both. Keys are also what manifests hold.

    Raises:
        ConfigError: for an unknown key or a value that is not allowed.
    """

    pipeline: PipelineSettings = group(PipelineSettings(), "pipeline")
    teaching: LabelSettings = group(LabelSettings(), "labels of a teacher")
    memory: MemorySettings = group(MemorySettings(), "memory")
    hardware: HardwareSettings = group(HardwareSettings(), "hardware")
    wire: WireSettings = group(WireSettings(), "between stages")
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
        """Stages of all groups together: stage j of group g is stage g * stages + j of the run."""
        return self.pipeline.groups * self.pipeline.stages

    @property
    def cut_every_steps(self) -> int:
        """Steps of a stream from one checkpoint to the next: a validation needs one, too."""
        return self.checkpoints.every_steps or self.validation.every_steps

    def changed(self, **values: Any) -> Self:
        """This with other values, by the keys of settings or as whole groups.

        Raises:
            ConfigError: as for a new one.
        """
        return replace(self, **values)

    def as_dict(self) -> dict[str, Any]:
        """Plain values by their keys, for the manifest."""
        known = declared(type(self))
        return {key: getattr(getattr(self, each.group), each.name) for key, each in known.items()}


def first_gpu(device: str) -> str:
    """The device that a measurement for all stages is taken on."""
    return "cuda:0" if device == "cuda" else device
