"""Rules: which version of a layer the READs of a step see (docs/rules.md).

A layer has the rule of its block. A layer without parameters and buffers (``Identity``, pooling,
dropout) is the same in every version, so it is treated as frozen whatever the rule of its block is,
and no task waits for it. This module also defines the update of a layer that follows another one,
as in a momentum teacher.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from naspipe.config.errors import ConfigError
from naspipe.config.ids import LayerId
from naspipe.config.text import knows_keywords


@dataclass(frozen=True, slots=True)
class OwnStep:
    """How the optimizer steps of one layer differ from the recipe."""

    momentum: float | None = None
    """Replaces the optimizer's ``momentum``, or the first of its ``betas``."""
    lr: float = 1.0
    """Factor of every step's rate."""
    every: int = 1
    """Number of steps whose gradients are averaged in order and then applied once."""
    predicts: int = 0
    """READs see a prediction of the layer after this many further steps, by momentum alone."""
    over: int = 0
    """Number of steps over which ``predicts`` grows from 0, as a lag does; 0 for no growth."""

    def applies(self, step: int) -> bool:
        """Return True if a step changes the layer; other steps only accumulate gradients."""
        return (step + 1) % self.every == 0

    def predicts_of(self, step: int) -> int:
        """Return the number of steps between ``step`` and the first step that reads its version."""
        reader = step + 1
        while reader - 1 - grown(self.predicts, self.over, reader) < step:
            reader += 1
        return reader - 1 - step


RECIPES = OwnStep()


def grown(late: int, over: int, step: int) -> int:
    """Return the lag of a step if the lag grows from 0 to ``late`` over ``over`` steps."""
    return late * step // over if step < over else late


@dataclass(frozen=True, slots=True)
class Exact:
    """Subnet y reads the version that its previous user wrote. Every choice block has this rule."""

    def last_read(self, step: int) -> int:
        """Return the newest step whose WRITE readers of ``step`` see; negative if none."""
        return step - 1

    def __str__(self) -> str:
        return "exact"


@dataclass(frozen=True, slots=True)
class Frozen:
    """Never updated: every subnet reads the initial version."""

    def last_read(self, step: int) -> int:
        return -1

    def __str__(self) -> str:
        return "frozen"


@knows_keywords
@dataclass(frozen=True, slots=True)
class Lag:
    """Subnet y reads the version that has every update of subnets <= y - 1 - ``subnets``.

    Updates are applied strictly in sequence order. ``Lag(0)`` reads what :class:`Exact` reads. At
    most ``subnets + 1`` subnets can then be in flight.

    Args:
        subnets: K; with ``passes``, the number of steps.
        over: number of steps over which K grows from 0 to its full value; 0 for no growth.
        momentum: of this layer's optimizer, in place of the recipe's (or of its first beta),
            because staleness acts as additional momentum (Mitliagkas et al. 2016).
        lr: factor of this layer's rate.
        predicts: READs see the layer as momentum alone will have moved it K steps later (after
            SpecTrain, Chen et al. 2018, and XPipe, Guan et al. 2019, which repeat the last update).
            While K grows, a version is predicted for the first step that reads it.
    """

    subnets: int
    over: int = 0
    momentum: float | None = None
    lr: float = 1.0
    predicts: bool = False

    def __post_init__(self) -> None:
        if self.subnets < 0:
            raise ConfigError(f"lag({self.subnets}): expected 0 or more subnets of lag")
        if self.over and self.over < self.subnets:
            raise ConfigError(
                f"{self}: expected over={self.subnets} or more, as K grows by one a step at most"
            )
        _check_own(self, self.own_step)

    @property
    def own_step(self) -> OwnStep:
        foreseen = (self.subnets, self.over) if self.predicts else (0, 0)
        return OwnStep(self.momentum, self.lr, 1, *foreseen)

    @property
    def most_under_way(self) -> int:
        """Maximum number of subnets in flight of which each reads the required version."""
        return self.subnets + 1

    def last_read(self, step: int) -> int:
        """See :meth:`Exact.last_read`; it never decreases from one step to the next."""
        return step - 1 - grown(self.subnets, self.over, step)

    def __str__(self) -> str:
        first = f"0..{self.subnets}" if self.over else str(self.subnets)
        own = [*_own_texts(self.own_step), *(["predict"] if self.predicts else [])]
        return f"lag({','.join([first, *([f'over={self.over}'] if self.over else []), *own])})"


@knows_keywords
@dataclass(frozen=True, slots=True)
class Every:
    """The gradients of ``steps`` steps are averaged in order and applied once, after the last step.

    Step y reads the version from before the latest one that was written before ``y - y % steps``,
    so no step waits for the previous one. ``Every(4)`` allows as many steps in flight as
    ``Lag(4)``. An incomplete group of gradients at the end of a run is not applied.

    Args:
        steps: M, at least 2.
        momentum: of this layer's optimizer, in place of the recipe's.
        lr: factor of this layer's rate.
    """

    steps: int
    momentum: float | None = None
    lr: float = 1.0

    def __post_init__(self) -> None:
        if self.steps < 2:
            raise ConfigError(f"every({self.steps}): expected 2 or more steps")
        _check_own(self, self.own_step)

    @property
    def own_step(self) -> OwnStep:
        return OwnStep(self.momentum, self.lr, self.steps)

    @property
    def most_under_way(self) -> int:
        return self.steps + 1

    def last_read(self, step: int) -> int:
        return (step // self.steps - 1) * self.steps - 1

    def __str__(self) -> str:
        return f"every({','.join([str(self.steps), *_own_texts(self.own_step)])})"


@dataclass(frozen=True, slots=True)
class Follows:
    """Each version is computed from the previous one and from a source layer of another stream.

    There is no other writer. A pass of step y reads the version of step y - 1 - ``steps``: 0 is the
    usual loop, 1 the asymmetric update of TSPipe (ICML'22, section 4.2). A layer follows the layer
    of the same candidate.
    """

    stream: int
    """Stream of the source."""
    block: int
    """Position of the source in its chain."""
    steps: int

    def __post_init__(self) -> None:
        if self.steps < 0:
            raise ConfigError(f"{self}: expected 0 or more steps of lag")

    def last_read(self, step: int) -> int:
        """See :meth:`Exact.last_read`."""
        return step - 1 - self.steps

    def __str__(self) -> str:
        return f"follows({self.stream}.{self.block},{self.steps})"


Rule = Exact | Frozen | Lag | Every | Follows


def steps_behind(rule: Rule) -> int | None:
    """Return the age in steps of the oldest version that readers need; None for the newest only."""
    match rule:
        case Lag(steps) | Follows(_, _, steps):
            return steps
        case Every(steps):
            return 2 * steps - 1
    return None


def most_copies(rule: Rule) -> int:
    """Return the maximum number of versions kept for readers, in addition to the newest."""
    behind = steps_behind(rule)
    return 2 if isinstance(rule, Every) else 0 if behind is None else behind + 1


def own_step(rule: Rule) -> OwnStep:
    """Return how the optimizer of a layer differs from the recipe."""
    return rule.own_step if isinstance(rule, Lag | Every) else RECIPES


_FORM = re.compile(r"(lag|every)\((0\.\.)?([0-9]{1,99})((?:,[a-z]+(?:=[0-9.e+-]{1,40})?)*)\)")
_FOLLOWS = re.compile(r"follows\(([0-9]{1,9})\.([0-9]{1,9}),([0-9]{1,9})\)")
_OPTIONS: dict[str, Callable[[str], Any]] = {"momentum": float, "lr": float, "over": int}


def parse_rule(text: str) -> Rule:
    """Read the text form of a rule: ``exact``, ``frozen``, ``lag(8)`` or ``every(4,lr=2)``.

    ``follows(STREAM.BLOCK,K)``, for layers of teachers, is not written by users.
    """
    if text in ("exact", "frozen"):
        return Exact() if text == "exact" else Frozen()
    if match := _FOLLOWS.fullmatch(text):
        return Follows(*map(int, match.groups()))
    if match := _FORM.fullmatch(text):
        kind, grows, number, words = match.groups()
        options = _options(words.split(",")[1:])
        if options is not None and bool(grows) == ("over" in options):
            if kind == "lag":
                return Lag(int(number), **options)
            if not {"over", "predicts"} & {*options}:
                return Every(int(number), **options)
    raise ConfigError(
        f"unknown rule {text!r:.80}: expected exact, frozen, lag(K) or every(M), as in lag(8) or "
        f"every(4,lr=2)"
    )


def _options(words: Sequence[str]) -> dict[str, Any] | None:
    """Parse the options after a rule's number; return None if that fails."""
    found: dict[str, Any] = {}
    for word in words:
        name, sign, value = word.partition("=")
        key = "predicts" if name == "predict" else name
        if key in found or (name not in _OPTIONS if sign else name != "predict"):
            return None
        try:
            found[key] = _OPTIONS[name](value) if sign else True
        except ValueError:
            return None
    return found


def _check_own(rule: Lag | Every, own: OwnStep) -> None:
    momentum = own.momentum
    if momentum is not None and not 0.0 <= momentum < 1.0:
        raise ConfigError(f"{rule}: expected a momentum from 0 to below 1, found {momentum}")
    if not (math.isfinite(own.lr) and own.lr > 0.0):
        raise ConfigError(f"{rule}: expected lr to be a factor above 0, found {own.lr}")


def _own_texts(own: OwnStep) -> list[str]:
    momentum = [] if own.momentum is None else [f"momentum={own.momentum!r}"]
    return [*momentum, *([] if own.lr == 1.0 else [f"lr={own.lr!r}"])]


STATELESS = "no state"

_FROZEN = Frozen()


@dataclass(frozen=True, slots=True)
class PartlyFrozen:
    """The rule of a block with some candidates that have no state."""

    rule: Rule
    frozen: frozenset[int]
    """Candidates without state: at least one, but not all."""

    def __str__(self) -> str:
        return str(self.rule)


BlockRule = Rule | PartlyFrozen


def rule_of(rules: Sequence[BlockRule], layer: LayerId) -> Rule:
    """Return the rule of a layer, from the rules of the blocks of its chain."""
    rule = rules[layer.block]
    if isinstance(rule, PartlyFrozen):
        return _FROZEN if layer.candidate in rule.frozen else rule.rule
    return rule


def with_stateless(
    rules: Sequence[Rule], counts: Sequence[int], stateless: Collection[tuple[int, int]]
) -> tuple[BlockRule, ...]:
    """Return the rule of each block, with layers without state frozen.

    ``stateless`` has the block and candidate of each layer without parameters and buffers;
    ``counts`` is the number of candidates of each block.
    """
    frozen: list[set[int]] = [set() for _ in rules]
    for block, candidate in stateless:
        frozen[block].add(candidate)
    found: list[BlockRule] = []
    for rule, count, own in zip(rules, counts, frozen, strict=True):
        if not own or isinstance(rule, Frozen):
            found.append(rule)
        else:
            found.append(PartlyFrozen(rule, frozenset(own)) if len(own) < count else _FROZEN)
    return tuple(found)


def rule_with_state(rule: BlockRule) -> Rule:
    """Return the rule of the layers of a block that have state."""
    return rule.rule if isinstance(rule, PartlyFrozen) else rule


def grown_up(rule: BlockRule) -> BlockRule:
    """Return the rule after its lag has grown, which determines the steady state of a stream."""
    own = rule_with_state(rule)
    if not isinstance(own, Lag):
        return rule
    grown = replace(own, over=0)
    return replace(rule, rule=grown) if isinstance(rule, PartlyFrozen) else grown


def untrained(rule: BlockRule) -> BlockRule:
    """Return the rule of a block in a stream that is not trained."""
    return rule if isinstance(rule_with_state(rule), Follows) else _FROZEN


TEACHER_BUFFERS = ("own", "copied", "averaged")
TEACHER_MODES = ("train", "eval")


@dataclass(frozen=True, slots=True, kw_only=True)
class MomentumUpdate:
    """``teacher.lerp_(student, 1 - tau)`` after each step of the student, for each parameter.

    Part of a run's definition.
    """

    tau: float
    """At the first step, from 0 to 1."""
    end: float | None = None
    """At the last step, reached along a half cosine (BYOL, section 3.2); None for a constant tau.
    """
    buffers: str = "own"
    """``own``: batch statistics of the teacher's forwards; ``copied`` from the student after each
    of its steps; or ``averaged`` as parameters are (integers are copied).
    """
    mode: str = "train"
    """Mode of the teacher's modules: ``train`` or ``eval``."""

    def __post_init__(self) -> None:
        for name, value in (("tau", self.tau), ("end", self.end)):
            if value is not None and not 0.0 <= value <= 1.0:
                raise ConfigError(f"momentum: expected {name} from 0 to 1, found {value}")
        for name, text, known in (
            ("buffers", self.buffers, TEACHER_BUFFERS), ("mode", self.mode, TEACHER_MODES),
        ):  # fmt: skip
            if text not in known:
                raise ConfigError(
                    f"momentum: expected {name} to be {' or '.join(known)}, found {text!r:.80}"
                )

    def rate(self, step: int, steps: int) -> float:
        """Return tau for one step of ``steps``, independent of the order of computation."""
        if self.end is None:
            return self.tau
        falls = 0.5 * (1.0 + math.cos(math.pi * step / max(1, steps)))
        return self.end - (self.end - self.tau) * falls

    def as_dict(self) -> Mapping[str, Any]:
        return asdict(self)
