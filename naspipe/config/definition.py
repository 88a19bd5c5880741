"""The definition of a run, and the settings that ``--set`` reaches.

A :class:`Definition` holds everything that determines the bits of a run. :class:`Settings` also has
the :class:`~naspipe.config.execution.Execution`, which determines only how fast a run is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from naspipe.config.errors import ConfigError
from naspipe.config.execution import Execution
from naspipe.config.recipe import Recipe
from naspipe.config.rules import TEACHER_BUFFERS, TEACHER_MODES, Follows, Rule, parse_rule
from naspipe.config.settings import (
    REQUIRED,
    Flag,
    Setting,
    at_least,
    between,
    check,
    declared,
    one_of,
    setting,
    unknown_key,
)
from naspipe.config.text import parse_json

DATA_SIZES = {
    key: Setting(key=key, help=text, allowed=(at_least(1),), kind=int)
    for key, text in (
        ("data.max_tokens", "maximum number of tokens in a batch of text."),
        ("data.batch_size", "number of samples in a batch of images."),
        ("data.batches", "number of micro-batches in a step, for data with several views."),
    )
}

MOMENTUM = {
    key: Setting(key=key, help=text, allowed=allowed, kind=kind, example=example)
    for key, kind, allowed, text, example in (
        ("momentum.tau", float, (between(0, 1),), "fraction of a momentum teacher's weights "
         "that is kept in each step; also set by `--momentum TAU`.", "0.99"),
        ("momentum.end", float, (between(0, 1),), "tau of the last step, reached along a half "
         "cosine; also set by `--momentum TAU:END`.", "1"),
        ("momentum.lag", int, (at_least(0),), "number of steps by which the teacher is older "
         "than the student (default: 1); 0 for the ordinary training loop.", "0"),
        ("momentum.mode", str, (one_of(*TEACHER_MODES),), "mode in which the teacher's modules "
         "run (default: train).", "eval"),
        ("momentum.buffers", str, (one_of(*TEACHER_BUFFERS),), "source of the teacher's batch "
         "statistics (default: own): own (its own forwards), copied (from the student after each "
         "step) or averaged (as the parameters are).", "copied"),
        ("momentum.without", str, (), "comma-separated labels of the student's last blocks that "
         "have no teacher (default: predictor, if that is the last block).", "predictor"),
    )
}  # fmt: skip
"""Settings of a teacher that follows the student; see :class:`naspipe.Momentum`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """Everything that determines the bits of a run, except the software and the hardware."""

    space: str
    scale: str = setting(
        "", "scale of a named space: tiny, small or paper.", flag=Flag(default="tiny")
    )
    data: Mapping[str, Any] = field(default_factory=dict)
    """The data set's own record: name, version, counts, checksums."""
    loss: str = ""
    recipe: Recipe = field(default_factory=Recipe)
    rules: Mapping[str, str] = field(default_factory=dict)
    """The rule of each shared layer, by the layer's name."""
    seed: int = setting(
        0,
        "seed of the subnet stream, the initial parameters and every random draw.",
        at_least(0),
        flag=Flag("K"),
    )
    steps: int = setting(
        REQUIRED,
        "number of optimizer steps, of one subnet each unless the recipe's `passes` setting "
        "specifies otherwise.",
        at_least(1),
        flag=Flag("S", 100),
    )
    sampler: str = setting(
        "uniform",
        "sampler that draws the subnets, or strategy that proposes them.",
        flag=Flag("NAME"),
    )
    policy: str = setting(
        "csp",
        "synchronisation policy: csp (bit-identical to the plain loop), or a baseline: bsp (as "
        "in GPipe), asp (as in PipeDream) or sequential. bsp and asp reproduce the training of "
        "systems that do not enforce causal order.",
        one_of("csp", "bsp", "asp", "sequential"),
        flag=Flag(),
    )
    bulk: int = setting(
        0,
        "number of subnets that bsp trains on the same weight versions; 0 for the number of "
        "stages. With 0, the result depends on the number of stages.",
        at_least(0),
        flag=Flag("N"),
    )

    weights: str = ""
    """Digest of the initial weights if they are given instead of drawn."""
    teacher: str = ""
    """Digest of the weights of the teacher, if any."""
    momentum: Mapping[str, Any] = field(default_factory=dict)
    """How the layers of a teacher follow the student's, if they do."""
    loss_fields: Sequence[str] = ()
    """Batch fields that the loss is called with, unless the loss names them itself."""
    metrics: Sequence[str] = ()
    """Names of the metrics that are computed for each pass."""

    def __post_init__(self) -> None:
        check(self)
        self.recipe.check_rate()

    @property
    def num_passes(self) -> int:
        """Number of sequence IDs of the stream: one for each pass of each step."""
        return self.steps * self.recipe.steps.passes

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for the manifest, without optional parts that are empty."""
        values = asdict(self)
        values["recipe"]["parameter_groups"] = list(values["recipe"]["parameter_groups"])
        for name in ("weights", "teacher", "momentum", "loss_fields", "metrics"):
            if not values[name]:
                del values[name]
        return values


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of ``--set``: recipe, execution, rules of shared layers, batch sizes."""

    recipe: Recipe = field(default_factory=Recipe)
    execution: Execution = field(default_factory=Execution)
    rules: Mapping[str, Rule] = field(default_factory=dict)
    data: Mapping[str, int] = field(default_factory=dict)
    """``max_tokens`` of a batch of text, ``batch_size`` of images, ``batches`` of a step."""
    momentum: Mapping[str, Any] = field(default_factory=dict)
    """Settings of a momentum teacher."""


def apply_settings(settings: Settings, assignments: Iterable[str]) -> Settings:
    """Apply ``key=value`` texts in order.

    Keys are those of :class:`Recipe` and :class:`Execution`, ``optimizer.OPTION``,
    ``parameter_groups`` (JSON), ``rule.SHARED_LAYER``, ``data.SIZE`` and ``momentum.SETTING``.
    Choosing another optimizer discards the options of the previous one.
    """
    pairs = []
    for text in assignments:
        key, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"--set {text}: expected key=value, as in --set lr=0.01")
        pairs.append((key.strip(), value.strip()))
    if dict(pairs).get("optimizer", settings.recipe.optimizer) != settings.recipe.optimizer:
        settings = replace(settings, recipe=replace(settings.recipe, optimizer_options={}))
    for key, value in pairs:
        settings = _assign(settings, key, value)
    return settings


def _assign(settings: Settings, key: str, value: str) -> Settings:
    if key.startswith("optimizer.") and key != "optimizer.":
        options = {**settings.recipe.optimizer_options, key.removeprefix("optimizer."): _any(value)}
        return replace(settings, recipe=replace(settings.recipe, optimizer_options=options))
    if key == "parameter_groups":
        return replace(settings, recipe=replace(settings.recipe, parameter_groups=_any(value)))
    if key.startswith("rule.") and key != "rule.":
        try:
            rule = parse_rule(value)
        except ConfigError as error:
            raise ConfigError(f"--set {key}: {error}") from None
        if isinstance(rule, Follows):
            raise ConfigError(
                f"--set {key}: expected exact, frozen, lag(K) or every(M), found {value}"
            )
        return replace(settings, rules={**settings.rules, key.removeprefix("rule."): rule})
    if key in DATA_SIZES:
        size = _read(DATA_SIZES[key], value)
        DATA_SIZES[key].check(size)
        return replace(settings, data={**settings.data, key.removeprefix("data."): size})
    if key in MOMENTUM:
        value_of = _read(MOMENTUM[key], value)
        MOMENTUM[key].check(value_of)
        momentum = {**settings.momentum, key.removeprefix("momentum."): value_of}
        return replace(settings, momentum=momentum)
    recipe, execution = settings.recipe, settings.execution
    of_recipe, of_execution = declared(type(recipe)), declared(type(execution))
    if key in of_recipe:
        return replace(settings, recipe=replace(recipe, **{key: _read(of_recipe[key], value)}))
    if key in of_execution:
        changed = execution.changed(**{key: _read(of_execution[key], value)})
        return replace(settings, execution=changed)
    known = [
        *of_recipe, *of_execution, *DATA_SIZES, *MOMENTUM, "optimizer.OPTION", "parameter_groups",
        "rule.LAYER",
    ]  # fmt: skip
    raise ConfigError(f"--set {unknown_key(key, known)}")


def _read(setting: Setting, text: str) -> Any:
    try:
        return setting.read(text)
    except ConfigError as error:
        raise ConfigError(f"--set {setting.key}: {error}") from None


def _any(text: str) -> Any:
    try:
        return parse_json(text)
    except ValueError:
        return text
