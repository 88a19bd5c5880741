"""The recipe: how every step is computed. It is part of a run's definition.

The learning rate of a step comes from a named schedule, a table or a user's function. Parameter
groups give some parameters of a layer other optimizer options:

    [[parameter_groups]]
    match = ["bias", "norm"]
    weight_decay = 0.0

A parameter belongs to the first group that matches it; the others have the recipe's options.
"""

from __future__ import annotations

import hashlib
import math
import re
import struct
from array import array
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, NamedTuple

from naspipe.config.errors import ConfigError
from naspipe.config.settings import (
    Allowed,
    GivenCode,
    at_least,
    between,
    check,
    expect,
    is_finite,
    name_of,
    norm,
    one_of,
    setting,
    share,
)
from naspipe.config.steps import NO_PROBES, ROUND, Steps, parse_passes, with_probes

KINDS = ("bias", "norm", "vector")

_NORM = re.compile(r"Norm(\d+d)?$")
_BIAS = re.compile(r"bias$|bias_|.*_bias$")
_PATTERN = re.compile(r"[.*?\[]")


class NamedParameter(NamedTuple):
    """The properties of a parameter that determine its group."""

    name: str
    """As in ``3.1.linear.bias`` or ``head.bias``: the layer, then the name within it."""
    dims: int
    owner: str
    """The class of the module that it belongs to."""


@dataclass(frozen=True, slots=True)
class ParameterGroup:
    """Parameters with their own optimizer options."""

    match: tuple[str, ...]
    lr_factor: float
    """Factor of every step's rate."""
    options: Mapping[str, Any]
    """Replace entries of the recipe's ``optimizer_options``."""

    def has(self, parameter: NamedParameter) -> bool:
        """Return True if a parameter matches one of the patterns or kinds."""
        return any(_matches(each, parameter) for each in self.match)


def parse_groups(written: object) -> tuple[ParameterGroup, ...]:
    """Return the groups of a recipe: mappings with ``match``, ``lr_factor`` and options."""
    if not isinstance(written, Sequence) or isinstance(written, str):
        raise ConfigError(
            f"parameter_groups: expected a list such as "
            f'[{{"match": ["bias", "norm"], "weight_decay": 0.0}}], found {written!r:.80}'
        )
    return tuple(_parsed(f"parameter_groups[{n}]", each) for n, each in enumerate(written))


def group_of(parameter: NamedParameter, groups: Sequence[ParameterGroup]) -> int:
    """Return the number of a parameter's group, counted from 1; 0 if no group matches."""
    return next((n for n, group in enumerate(groups, 1) if group.has(parameter)), 0)


def _matches(pattern: str, parameter: NamedParameter) -> bool:
    match pattern:
        case "bias":
            return _BIAS.match(parameter.name.rpartition(".")[2]) is not None
        case "norm":
            return _NORM.search(parameter.owner) is not None
        case "vector":
            return parameter.dims < 2
        case _:
            return fnmatchcase(parameter.name, pattern)


def _parsed(where: str, written: object) -> ParameterGroup:
    if not isinstance(written, Mapping) or not written.get("match"):
        raise ConfigError(
            f"{where}: expected match and options, as in "
            f'{{"match": "norm", "weight_decay": 0.0}}, found {written!r:.80}'
        )
    match = written["match"]
    patterns = [match] if isinstance(match, str) else match
    if not isinstance(patterns, Sequence):
        raise ConfigError(
            f"{where}: match: expected a text or a list of texts, found {match!r:.80}"
        )
    for each in patterns:
        expect(
            each in KINDS or (isinstance(each, str) and _PATTERN.search(each) is not None),
            f"{where}: match", f"{', '.join(KINDS)} or a pattern of names such as *.weight or "
            f"head.*", each,
        )  # fmt: skip
    factor = written.get("lr_factor", 1.0)
    is_number = isinstance(factor, int | float) and not isinstance(factor, bool)
    is_good = is_number and is_finite(factor) and factor >= 0
    expect(is_good, f"{where}: lr_factor", "0 or more", factor)
    options = {key: value for key, value in written.items() if key not in ("match", "lr_factor")}
    if "lr" in options:
        raise ConfigError(
            f"{where}: expected lr_factor, which multiplies the rate of each step, found lr="
            f"{options['lr']!r:.40}"
        )
    for option, value in options.items():
        expect(is_finite(value), f"{where}: {option}", "finite numbers", value)
    return ParameterGroup(tuple(patterns), float(factor), options)


SCHEDULES = ("constant", "linear", "cosine", "inverse_sqrt")
FALLING = ("linear", "cosine")
"""Schedules that end at 0, and can therefore restart."""

_RECORDED = re.compile(r".+@[0-9a-f]{16}")
_TABLE = re.compile(r"table\((.*)\)")


def by_step(schedule: str) -> bool:
    """Return True if the schedule defines the rate of every step, without warm-up."""
    return schedule not in SCHEDULES


def factor(schedule: str, step: int) -> float:
    """Return the factor of a step's rate, from a table or a function."""
    if isinstance(schedule, GivenCode):
        return float(schedule.code(step))
    if _TABLE.fullmatch(schedule) is None:
        raise ConfigError(
            f"schedule {schedule}: expected the function itself, found its name; go on with "
            f"naspipe.train(..., lr=FUNCTION)"
        )
    firsts, factors = _parsed_table(schedule)
    return factors[bisect_right(firsts, step) - 1]


def in_cycle(position: int, first: int, growth: int) -> tuple[int, int]:
    """Return a step's position in its cycle, and the cycle's length, which grows by ``growth``."""
    length = first
    if growth == 1:
        position %= length
    while position >= length:
        position, length = position - length, length * growth
    return position, length


def table_text(rates: Mapping[int, float]) -> str:
    """Return the text of a table, from rates by the first step that has them."""
    for step, rate in rates.items():
        if type(step) is not int or isinstance(rate, bool) or not isinstance(rate, int | float):
            raise ConfigError(
                f"lr: expected rates by steps, as in {{0: 0.1, 100: 0.01}}, found "
                f"{step!r:.40}: {rate!r:.40}"
            )
    text = f"table({','.join(f'{step}:{float(rate)!r}' for step, rate in sorted(rates.items()))})"
    _parsed_table(text)
    return text


def schedule_of(rate: Callable[[int], float], steps: int) -> GivenCode:
    """Return a user's function as a schedule; it is called here, once for each step.

    Manifests record its name and a digest of its rates.
    """
    rates = array("d")
    for step in range(steps):
        value = rate(step)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(
                f"lr: expected a number for step {step}, found {name_of(rate)} to return "
                f"{value!r:.40} of type {type(value).__name__}"
            )
        if not (math.isfinite(value) and value >= 0):
            raise ConfigError(
                f"lr: expected a rate of 0 or more for step {step}, found {name_of(rate)} to "
                f"return {value!r:.40}"
            )
        rates.append(value)
    packed = struct.pack(f"<{len(rates)}d", *rates)
    digest = hashlib.blake2b(packed, digest_size=8).hexdigest()
    return GivenCode(rates.__getitem__, f"{name_of(rate)}@{digest}")


def _is_schedule(text: str) -> bool:
    if _TABLE.fullmatch(text):
        _parsed_table(text)
        return True
    return text in SCHEDULES or _RECORDED.fullmatch(text) is not None


@lru_cache(maxsize=64)
def _parsed_table(text: str) -> tuple[list[int], list[float]]:
    """Return the first steps of a table's entries, rising from 0, and their factors."""
    found = _TABLE.fullmatch(text)
    pairs = [each.split(":") for each in found.group(1).split(",")] if found else []
    try:
        firsts = [int(first) for first, _ in pairs]
        factors = [float(value) for _, value in pairs]
    except ValueError:
        firsts, factors = [], []
    is_rising = firsts == sorted(set(firsts)) and firsts[:1] == [0]
    if not is_rising or not all(math.isfinite(each) and each >= 0 for each in factors):
        raise ConfigError(
            f"schedule: expected rising steps from 0, each with a factor of 0 or more, as in "
            f"table(0:1,100:0.1), found {text:.80}"
        )
    return firsts, factors


MAX_THREADS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How every step is computed. Part of a run's definition."""

    optimizer: str = setting(
        "SGD",
        "name of a torch.optim class that can step each layer separately, or LARS.",
        example="Adam",
    )
    lr: float = setting(0.05, "peak learning rate.", at_least(0), example="1e-3")
    optimizer_options: Mapping[str, Any] = field(default_factory=dict)
    """Further keyword arguments of the optimizer; ``--set optimizer.momentum=0.9``."""
    parameter_groups: Sequence[Mapping[str, Any]] = ()
    """Parameters with their own options: ``match``, ``lr_factor`` and ``optimizer_options``."""
    schedule: str = setting(
        "constant",
        "learning rate schedule: constant, linear, cosine, inverse_sqrt, or "
        "table(STEP:FACTOR,...), which multiplies lr by FACTOR from STEP on. In Python, lr may "
        "be a function of the step number, or a mapping from steps to rates.",
        Allowed(f"{' or '.join(SCHEDULES)} or table(STEP:FACTOR,...)", _is_schedule),
        example="cosine",
    )
    warmup_steps: int = setting(
        0,
        "number of optimizer steps over which the learning rate rises linearly to its peak; with "
        "N steps, step 0 uses 1/N of the peak.",
        at_least(0),
        unit="steps",
        example="7",
    )
    restart_steps: int = setting(
        0,
        "number of steps after the warm-up in which a linear or cosine schedule decays to 0 "
        "before it restarts; 0 to decay over all remaining steps, without restarts.",
        at_least(0),
        unit="steps",
        example="100",
    )
    restart_factor: int = setting(
        1,
        "factor by which each of these cycles is longer than the previous one.",
        at_least(1),
        example="2",
    )
    precision: str = setting(
        "float32",
        "compute precision: float32, or bf16 for autocast with float32 weights.",
        one_of("float32", "bf16"),
        example="bf16",
    )
    feedback_delay: int = setting(
        15,
        "for subnets proposed by a search strategy: number of subnets between a score and the "
        "first proposal that can depend on it. At most one more subnet than this is in flight.",
        at_least(0),
        unit="subnets",
        example="3",
    )
    nonfinite: str = setting(
        "stop",
        "action if a loss is infinite or NaN: stop (end the run), skip (leave the parameters and "
        "the optimizer state unchanged, and record the loss) or keep (continue training, as the "
        "plain loop would).",
        one_of("stop", "skip", "keep"),
        example="skip",
    )
    threads: int = setting(
        1,
        "number of intra-op threads of each stage. It is part of the definition because the "
        "results of floating-point sums depend on it.",
        between(1, MAX_THREADS),
        example="2",
    )
    label_smoothing: float = setting(
        0.0,
        "fraction of each target that is distributed uniformly over all classes. It applies only "
        "to losses that accept it.",
        share("a share"),
        example="0.1",
    )
    clip_layer_norm: float = setting(
        0.0,
        "maximum norm of each layer's gradient, which is clipped before the layer's optimizer "
        "step; 0 for no clipping.",
        norm(),
        example="0.5",
    )
    clip_global_norm: float = setting(
        0.0,
        "maximum norm of all gradients of a step together, across all stages; 0 for no clipping.",
        norm(),
        example="2",
    )
    passes: str = setting(
        "one",
        "passes that make up a step: one (one subnet on one batch), accumulate:N (one subnet on "
        "N batches, one after another), subnets:N (N subnets, each on its own batch, whose "
        "gradients are summed; subnets:N:passes and subnets:N:users divide the sum by N, or by "
        "the number of these subnets that use the layer), fair (as many subnets as a block has "
        "candidates, on one batch, whose gradients are summed, as in FairNAS with sampler fair; "
        "fair:N for N subnets) or sandwich:R (the largest subnet, the smallest one and R random "
        "ones on one batch; the others learn from the output of the largest one).",
        example="sandwich:2",
    )
    probes: str = setting(
        NO_PROBES,
        "forward-only passes at the start of a step that select the subnets to train: none, "
        "best:K or worst:K. For each subnet that `passes` requires, K subnets are drawn, and the "
        "one with the lowest (best) or highest (worst) loss on the step's batch is trained "
        "(AttentiveNAS).",
        example="worst:3",
    )
    reduction: str = setting(
        "fold",
        "order in which the gradients of a step's passes are summed: fold (one after another, in "
        "pass order) or tree (by recursive halving; the number of passes must be a power of two).",
        one_of("fold", "tree"),
        example="tree",
    )
    weight: str = setting(
        "passes",
        "weight of the loss of each pass in a step's average: passes (all passes count equally) "
        "or items (by the number of targets in the pass's batch, without those that the loss "
        "ignores).",
        one_of("passes", "items"),
        example="items",
    )
    norms: str = setting(
        "ordered",
        "when the running statistics of batch normalisation are updated: ordered (in each "
        "forward, so that passes go through such a layer one at a time) or deferred (in pass "
        "order at the end of the step; such a layer may then also have a lag rule).",
        one_of("ordered", "deferred"),
        example="deferred",
    )
    ema: float = setting(
        0.0,
        "decay of the moving average of each parameter, updated after each of the parameter's "
        "own optimizer steps; 0 for no averages. Layers that a step does not use keep their "
        "averages.",
        share("a decay"),
        example="0.999",
    )

    @property
    def steps(self) -> Steps:
        """How passes form steps."""
        is_gated, by_items = self.clip_global_norm > 0, self.weight == "items"
        steps = replace(parse_passes(self.passes), is_gated=is_gated, weighs_items=by_items)
        reduced = steps if steps.passes == 1 else replace(steps, reduction=self.reduction)
        return with_probes(reduced, self.probes)

    @property
    def groups(self) -> tuple[ParameterGroup, ...]:
        """The parameter groups, without the remaining parameters."""
        return parse_groups(self.parameter_groups)

    def of_group(self, number: int) -> Recipe:
        """Return the recipe for the parameters of one group, counted from 1; 0 for the rest."""
        options = self.groups[number - 1].options if number else {}
        return replace(self, optimizer_options={**self.optimizer_options, **options})

    def check_rate(self) -> None:
        """Check that the settings of the learning rate are consistent, once all are known."""
        expect(
            not self.restart_steps or self.schedule in FALLING, f"restart_steps="
            f"{self.restart_steps}", f"schedule={' or '.join(FALLING)}", self.schedule,
        )  # fmt: skip
        expect(
            not (self.warmup_steps and by_step(self.schedule)), f"schedule={self.schedule:.40}",
            "warmup_steps=0, as it says the rate of every step", self.warmup_steps,
        )  # fmt: skip

    def check_warmup(self, steps: int) -> None:
        """Check that a requested warm-up ends within a run of ``steps`` steps."""
        expect(
            self.warmup_steps <= steps, f"warmup_steps={self.warmup_steps}",
            f"at most the run's steps={steps}, as the rate would never reach lr", self.warmup_steps,
        )  # fmt: skip

    def settled(self, candidate_counts: Sequence[int]) -> Recipe:
        """Return the recipe for a space whose choice blocks have these numbers of candidates."""
        if self.passes != ROUND:
            return self
        return replace(self, passes=f"{ROUND}:{max(candidate_counts, default=1)}")

    def __post_init__(self) -> None:
        check(self)
        for option, value in self.optimizer_options.items():
            expect(is_finite(value), f"optimizer.{option}", "finite numbers", value)
        parse_groups(self.parameter_groups)
        steps = parse_passes(f"{ROUND}:1" if self.passes == ROUND else self.passes)
        is_power = steps.passes.bit_count() == 1
        expect(
            self.reduction == "fold" or is_power, "reduction=tree",
            "passes that are a power of two", self.passes,
        )  # fmt: skip
        with_probes(steps, self.probes)
        expect(
            self.probes == NO_PROBES or not self.passes.startswith(ROUND), f"probes={self.probes}",
            "passes that draw subnets on their own, and not those of fair rounds", self.passes,
        )  # fmt: skip
        expect(
            self.weight == "passes" or steps.is_average, "weight=items",
            "passes=accumulate:N or subnets:N:passes, which are averaged", self.passes,
        )  # fmt: skip


def learning_rate(recipe: Recipe, step: int, steps: int) -> float:
    """Return the rate of one step, independent of the order in which steps are computed.

    The rate rises linearly over the first ``warmup_steps`` steps. Then it is constant, decays to 0
    at ``steps`` linearly or by a half cosine, or decays with the inverse square root of the step
    (Vaswani et al. 2017, section 5.3). With ``restart_steps`` it decays to 0 in that number of
    steps, and restarts (Loshchilov and Hutter 2017), with the bits of torch's
    ``CosineAnnealingWarmRestarts``.
    """
    if by_step(recipe.schedule):
        return recipe.lr * factor(recipe.schedule, step)
    warmup = recipe.warmup_steps
    if step < warmup:
        return recipe.lr * (step + 1) / warmup
    if recipe.restart_steps:
        place, length = in_cycle(step - warmup, recipe.restart_steps, recipe.restart_factor)
        if recipe.schedule == "linear":
            return recipe.lr * (1.0 - place / length)
        return recipe.lr * (1.0 + math.cos(math.pi * place / length)) / 2  # in torch's order
    progress = (step - warmup) / max(1, steps - warmup)
    match recipe.schedule:
        case "linear":
            return recipe.lr * (1.0 - progress)
        case "cosine":
            return recipe.lr * 0.5 * (1.0 + math.cos(math.pi * progress))
        case "inverse_sqrt":
            start = max(1, warmup)
            return recipe.lr * math.sqrt(start / (step - warmup + start))
        case _:
            return recipe.lr
