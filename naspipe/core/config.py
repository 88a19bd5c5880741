"""The frozen configuration tree: what defines a run's results, and what only its speed."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from naspipe.core.checks import expect, is_finite
from naspipe.core.errors import ConfigError
from naspipe.core.json_text import parse_json
from naspipe.core.recipe import Recipe as Recipe
from naspipe.core.rules import Rule, parse_rule

PARTITIONS = ("balanced", "static")
DATA_PATHS = ("zmq", "nccl")
SYNC_POLICIES = ("csp", "bsp", "asp", "sequential")
MAX_TIMEOUT_SECONDS = 86_400.0
"""A day."""

_DATA_KEYS = ("data.max_tokens", "data.batch_size")
_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


_UNITS = {"": 1, "b": 1} | {
    name: base**power
    for power, letter in enumerate("kmgt", 1)
    for name, base in ((f"{letter}ib", 1024), (f"{letter}b", 1000), (letter, 1024))
}


def parse_bytes(text: str) -> int:
    """Bytes from ``512MiB``, ``2GB`` or ``4096``; 0 for anything else."""
    match = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)\s*([a-z]*)", text.strip().lower())
    return int(float(match[1]) * _UNITS[match[2]]) if match and match[2] in _UNITS else 0


def first_gpu(device: str) -> str:
    """The device that a measurement for all stages is taken on."""
    return "cuda:0" if device == "cuda" else device


def parse_subnets(text: str) -> float:
    """A number of subnets from ``3x`` or ``1.5x``; 0 for anything else."""
    match = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]{1,6})?)x", text.strip().lower())
    return float(match[1]) if match else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """Everything that the bits of a run depend on, beside the software and the hardware."""

    space: str
    scale: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)
    """What the data set says of itself: name, version, counts, checksums."""
    loss: str = ""
    recipe: Recipe = field(default_factory=Recipe)
    rules: Mapping[str, str] = field(default_factory=dict)
    """The rule of each shared layer, by its name."""
    seed: int = 0
    steps: int
    """Optimizer steps: of one subnet each, unless the recipe's ``passes`` say otherwise."""
    sampler: str = "uniform"
    policy: str = "csp"
    """csp: the bits of the plain loop. bsp, asp: what systems without causal order train."""
    bulk: int = 0
    """Subnets that bsp trains at the same versions; 0 for as many as there are stages, on which
    its result then depends."""

    def __post_init__(self) -> None:
        expect(self.policy in SYNC_POLICIES, "policy", " or ".join(SYNC_POLICIES), self.policy)
        expect(self.bulk >= 0, "bulk", "0 or more", self.bulk)
        expect(self.steps >= 1, "steps", "1 or more", self.steps)
        expect(self.seed >= 0, "seed", "0 or more", self.seed)

    @property
    def num_subnets(self) -> int:
        """Sequence IDs of the stream: one for each pass of each step."""
        return self.steps * self.recipe.steps.passes

    def as_dict(self) -> dict[str, Any]:
        """Plain values for the manifest."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """How a run is carried out: never a matter of its bits."""

    stages: int = 1
    """Stage processes; one needs neither a second process nor sockets."""
    recompute: bool = False
    """Keep only each block's input and compute its forward again in the backward."""
    window: int = 16
    """Sequence IDs that may be under way at a time."""
    order: str = "auto"
    """Which of several clear tasks runs first: paper, critical-path, or auto, which simulates the
    beginning of the stream under both and takes the faster."""
    partly_clear: bool = True
    """Start a forward whose first blocks are clear before all of the stage's are."""
    partition: str = "balanced"
    """balanced: each subnet has its own balanced partition, and layers follow their users over
    the stages; static: one partition for all."""
    device: str = "cpu"
    """cpu, or cuda: one GPU per stage where there are as many, else all stages share the GPUs."""
    memory_budget: str = ""
    """What layers may occupy on a stage's device: bytes (as in 512MiB or 2GB) or a number of
    subnets (as in 3x, beside the shared layers). Empty for no limit. The device of ``cpu`` is then
    emulated."""
    prefetch: bool = True
    """Load layers before they are needed; without, only when the stage waits for them."""
    bandwidth: float = 12e9
    """Bytes per second of the emulated device's copies, each way (PCIe 3.0 x16)."""
    latency: float = 20e-6
    """Seconds that each of its copies takes at least."""
    host_memory: str = ""
    """The most host memory of a stage's layers, where there is a memory budget."""
    activation_memory: str = ""
    """The most that the passes under way on a stage may keep; limits how many are."""
    data_path: str = "zmq"
    """How inputs of tasks reach another stage: zmq, through host memory, or nccl, from GPU to GPU
    where every stage has one of its own (never run on GPUs yet)."""
    transport: str = "ipc"
    """ipc, or tcp on the loopback interface (ports ``port``, ``port`` + 1, ...)."""
    port: int = 29600
    """First port of the tcp transport: one for each stage and one for the launcher; under torchrun
    two for each stage."""
    interface: str = ""
    """Under torchrun, the network interface whose address every host listens on; empty for the one
    that leads to rank 0's host."""
    timeout_seconds: float = 300.0
    """How long a stage may be at one block, or wait for a message, before it is given up."""
    silence_seconds: float = 30.0
    """How long a stage's process may give no sign of life before it is given up."""
    checkpoint_every: int = 0
    """Steps of a stream from one checkpoint to the next; 0 for none on the way."""
    keep_checkpoints: int = 2
    """How many of them are kept, the newest."""
    max_restarts: int = 0
    """How often a run whose stage failed goes on by itself from its last whole checkpoint."""
    validate_every: int = 0
    """Steps of a stream from one validation of the supernet to the next; 0 for none."""
    validate_subnets: str = "4"
    """What it is judged by: so many subnets drawn from the seed, or file:PATH."""
    validate_batches: int = 8
    """Held-out batches that each is judged on, or all where there are fewer."""
    validate_calibrate: int = 4
    """Training batches that running statistics are taken from; 0 for the run's own."""
    validate_ema: bool = False
    """Judge by the moving averages of the weights."""
    digests: bool = False
    """Record a digest of the bytes that every WRITE leaves."""
    tensorboard: bool = False
    """Write TensorBoard's files, too."""
    record_events: bool = False
    """Record every controller's input, so that it can be replayed."""

    def __post_init__(self) -> None:
        expect(self.stages >= 1, "stages", "1 or more", self.stages)
        expect(self.window >= 1, "window", "1 or more", self.window)
        expect(self.partition in PARTITIONS, "partition", " or ".join(PARTITIONS), self.partition)
        is_device = re.fullmatch(r"cpu|cuda(:[0-9]{1,4})?", self.device) is not None
        expect(is_device, "device", "cpu, cuda or cuda:N", self.device)
        for limit in ("host_memory", "activation_memory"):
            text = getattr(self, limit)
            expect(not text or parse_bytes(text) > 0, limit, "bytes, as in 2GB", text)
        budget = self.memory_budget
        allowed = "bytes, as in 512MiB, or a number of subnets, as in 3x"
        is_budget = not budget or parse_bytes(budget) > 0 or parse_subnets(budget) > 0
        expect(is_budget, "memory_budget", allowed, budget)
        expect(self.bandwidth > 0, "bandwidth", "more than 0", self.bandwidth)
        expect(is_finite(self.bandwidth), "bandwidth", "a finite number", self.bandwidth)
        expect(0 <= self.latency <= 60, "latency", "0 to 60 seconds", self.latency)
        expect(self.transport in ("ipc", "tcp"), "transport", "ipc or tcp", self.transport)
        expect(self.data_path in DATA_PATHS, "data_path", " or ".join(DATA_PATHS), self.data_path)
        expect(1024 <= self.port <= 65000, "port", "1024 to 65000", self.port)
        is_good = 0 < self.timeout_seconds <= MAX_TIMEOUT_SECONDS
        allowed = f"more than 0, at most {MAX_TIMEOUT_SECONDS:g}"
        expect(is_good, "timeout_seconds", allowed, self.timeout_seconds)

        is_good = 0 < self.silence_seconds <= MAX_TIMEOUT_SECONDS
        expect(is_good, "silence_seconds", allowed, self.silence_seconds)
        expect(self.checkpoint_every >= 0, "checkpoint_every", "0 or more", self.checkpoint_every)
        expect(self.keep_checkpoints >= 1, "keep_checkpoints", "1 or more", self.keep_checkpoints)
        expect(self.max_restarts >= 0, "max_restarts", "0 or more", self.max_restarts)
        self._check_validation()

    def _check_validation(self) -> None:
        every, apart = self.validate_every, self.checkpoint_every
        expect(every >= 0, "validate_every", "0 or more", every)
        allowed = f"a multiple of checkpoint_every, {apart}, as checkpoints are what is judged"
        expect(not apart or every % apart == 0, "validate_every", allowed, every)
        is_good = re.fullmatch(r"[1-9][0-9]{0,5}|file:.+", self.validate_subnets) is not None
        allowed = "a number of subnets, as in 4, or file:PATH"
        expect(is_good, "validate_subnets", allowed, self.validate_subnets)
        expect(self.validate_batches >= 1, "validate_batches", "1 or more", self.validate_batches)
        calibrate = self.validate_calibrate
        expect(calibrate >= 0, "validate_calibrate", "0 or more", calibrate)

    @property
    def cut_every(self) -> int:
        """Steps of a stream from one checkpoint to the next: a validation needs one, too."""
        return self.checkpoint_every or self.validate_every

    def as_dict(self) -> dict[str, Any]:
        """Plain values for the manifest."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What ``--set key=value`` reaches: recipe, execution, shared rules and sizes of batches."""

    recipe: Recipe = field(default_factory=Recipe)
    execution: Execution = field(default_factory=Execution)
    rules: Mapping[str, Rule] = field(default_factory=dict)
    data: Mapping[str, int] = field(default_factory=dict)
    """``max_tokens`` of a batch of text, ``batch_size`` of images."""


def apply_settings(settings: Settings, assignments: Iterable[str]) -> Settings:
    """Apply ``key=value`` texts in order.

    Keys are the fields of :class:`Recipe` and :class:`Execution`, ``optimizer.OPTION``,
    ``rule.SHARED_LAYER``, ``data.max_tokens`` and ``data.batch_size``. Another optimizer starts
    without the options of the one before.

    Raises:
        ConfigError: for a text without ``=``, an unknown key or a value that does not fit.
    """
    pairs = [_pair(text) for text in assignments]
    if dict(pairs).get("optimizer", settings.recipe.optimizer) != settings.recipe.optimizer:
        settings = replace(settings, recipe=replace(settings.recipe, optimizer_options={}))
    for key, value in pairs:
        settings = _assign(settings, key, value)
    return settings


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"--set {text}: expected key=value, as in --set lr=0.01")
    return key.strip(), value.strip()


def _assign(settings: Settings, key: str, value: str) -> Settings:
    if key.startswith("optimizer.") and key != "optimizer.":
        options = {**settings.recipe.optimizer_options, key.removeprefix("optimizer."): _any(value)}
        return replace(settings, recipe=replace(settings.recipe, optimizer_options=options))
    if key.startswith("rule.") and key != "rule.":
        try:
            rule = parse_rule(value)
        except ConfigError as error:
            raise ConfigError(f"--set {key}: {error}") from None
        return replace(settings, rules={**settings.rules, key.removeprefix("rule."): rule})
    if key in _DATA_KEYS:
        size = _like(0, key, value)
        expect(size >= 1, key, "1 or more", size)
        return replace(settings, data={**settings.data, key.removeprefix("data."): size})
    recipe, execution = settings.recipe, settings.execution
    if key in _scalar_fields(recipe):
        return replace(
            settings, recipe=replace(recipe, **{key: _like(getattr(recipe, key), key, value)})
        )
    if key in _scalar_fields(execution):
        return replace(
            settings,
            execution=replace(execution, **{key: _like(getattr(execution, key), key, value)}),
        )
    scalars = [*_scalar_fields(recipe), *_scalar_fields(execution)]
    known = [*scalars, *_DATA_KEYS, "optimizer.OPTION", "rule.LAYER"]
    close = difflib.get_close_matches(key, known, n=1)
    hint = f" (did you mean {close[0]}?)" if close else ""
    raise ConfigError(f"--set {key}: unknown key{hint}; expected one of {', '.join(known)}")


def _scalar_fields(node: Recipe | Execution) -> list[str]:
    return [f.name for f in fields(node) if f.name != "optimizer_options"]


def _like(value: Any, key: str, text: str) -> Any:
    """Read a value of the type that the setting has now."""
    kind = type(value)
    try:
        if kind is bool:
            return {"true": True, "false": False, "1": True, "0": False}[text.lower()]
        return kind(text)
    except (KeyError, ValueError):
        raise ConfigError(f"--set {key}: expected {_KINDS[kind]}, found {text!r:.80}") from None


def _any(text: str) -> Any:
    try:
        return parse_json(text)
    except ValueError:
        return text
