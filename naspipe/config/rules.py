"""How a layer's READs follow its WRITEs: the rule each layer names (docs/rules.md).

A layer has the rule of its block, but a layer without parameters and buffers (``Identity``,
pooling, dropout) is the same in every version. So nobody waits for one: whatever the rule of its
block says, it is treated as frozen. The update of a layer that follows another one, as a momentum
teacher does, stands beside its rule.
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
    """What the optimizer steps of one layer do otherwise than the recipe says."""

    momentum: float | None = None
    """In place of the optimizer's ``momentum``, or of the first of its ``betas``."""
    lr: float = 1.0
    """Factor of every step's rate."""
    every: int = 1
    """Steps whose gradients are averaged in their order and then applied once."""
    predicts: int = 0
    """READs see the layer after so many more steps, in each of which momentum alone moves it."""
    over: int = 0
    """Steps in which that grows from 0, as a lag does; 0 for at once."""

    def applies(self, step: int) -> bool:
        """Whether a step changes the layer; others only gather their gradients."""
        return (step + 1) % self.every == 0

    def predicts_of(self, step: int) -> int:
        """So many for what ``step`` wrote: as many as lie before the first step that reads it."""
        reader = step + 1
        while reader - 1 - grown(self.predicts, self.over, reader) < step:
            reader += 1
        return reader - 1 - step


RECIPES = OwnStep()


def grown(late: int, over: int, step: int) -> int:
    """How late a step reads where that grows from 0 to ``late`` over so many steps."""
    return late * step // over if step < over else late


@dataclass(frozen=True, slots=True)
class Exact:
    """Subnet y reads the version its previous user wrote. Every choice block has this rule."""

    def last_read(self, step: int) -> int:
        """The newest step whose WRITE the readers of a step see; below 0 for none."""
        return step - 1

    def __str__(self) -> str:
        return "exact"


@dataclass(frozen=True, slots=True)
class Frozen:
    """Never updated: every subnet reads the initial version."""

    def last_read(self, step: int) -> int:
        """None, see :meth:`Exact.last_read`."""
        return -1

    def __str__(self) -> str:
        return "frozen"


@knows_keywords
@dataclass(frozen=True, slots=True)
class Lag:
    """Subnet y reads the version holding every update of subnets <= y - 1 - ``subnets``.

    Updates are applied strictly in sequence order. ``Lag(0)`` reads what :class:`Exact` reads.
    At most ``subnets + 1`` subnets can then be in flight.

    Args:
        subnets: K; with ``passes``, of steps.
        over: steps in which K grows from 0 to its full size, one by one; 0 for at once.
        momentum: of this layer's optimizer, in place of the recipe's: staleness acts as momentum of
            its own (Mitliagkas et al. 2016). The first of the betas where there is no momentum.
        lr: factor of this layer's rate.
        predicts: READs see the layer where its momentum alone will have taken it K steps on (after
            SpecTrain, Chen et al. 2018, and XPipe, Guan et al. 2019, which repeat the last update).
            While K grows, a version is foreseen for the first step that reads it.

    Raises:
        ConfigError: when a number is not what it should be.
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
        """How the layer's optimizer steps."""
        foreseen = (self.subnets, self.over) if self.predicts else (0, 0)
        return OwnStep(self.momentum, self.lr, 1, *foreseen)

    @property
    def most_under_way(self) -> int:
        """Subnets at once, of which each reads what it should."""
        return self.subnets + 1

    def last_read(self, step: int) -> int:
        """Of ``step``, see :meth:`Exact.last_read`; it never falls from one step to the next."""
        return step - 1 - grown(self.subnets, self.over, step)

    def __str__(self) -> str:
        first = f"0..{self.subnets}" if self.over else str(self.subnets)
        own = [*_own_texts(self.own_step), *(["predict"] if self.predicts else [])]
        return f"lag({','.join([first, *([f'over={self.over}'] if self.over else []), *own])})"


@knows_keywords
@dataclass(frozen=True, slots=True)
class Every:
    """The gradients of ``steps`` steps are averaged in order and applied once, behind the last one.

    Step y reads the version from before the one that was made last before ``y - y % steps``: so
    no step waits for the one just before it. ``Every(4)`` lets as many be under way as ``Lag(4)``.
    What is gathered at the end of a run and not a whole number of them is not applied.

    Args:
        steps: M, 2 or more.
        momentum: of this layer's optimizer, in place of the recipe's.
        lr: factor of this layer's rate.

    Raises:
        ConfigError: when a number is not what it should be.
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
        """How the layer's optimizer steps."""
        return OwnStep(self.momentum, self.lr, self.steps)

    @property
    def most_under_way(self) -> int:
        """Subnets at once, whenever that is."""
        return self.steps + 1

    def last_read(self, step: int) -> int:
        """Of ``step``, see :meth:`Exact.last_read`; it never falls from one step to the next."""
        return (step // self.steps - 1) * self.steps - 1

    def __str__(self) -> str:
        return f"every({','.join([str(self.steps), *_own_texts(self.own_step)])})"


@dataclass(frozen=True, slots=True)
class Follows:
    """A step's version is made of the one before, and of the step's version of another layer.

    That is the source, of another stream. Nobody else writes it. A pass of step y reads the version
    of step y - 1 - ``steps``: with 0 the one that holds everything before it, with 1 the asymmetric
    update of TSPipe (ICML'22, section 4.2). Layers of the same candidate belong together.
    """

    stream: int
    """Of the source."""
    block: int
    """Of the source, a position in its chain."""
    steps: int

    def __post_init__(self) -> None:
        if self.steps < 0:
            raise ConfigError(f"{self}: expected 0 or more steps of lag")

    def last_read(self, step: int) -> int:
        """Of ``step``, see :meth:`Exact.last_read`."""
        return step - 1 - self.steps

    def __str__(self) -> str:
        return f"follows({self.stream}.{self.block},{self.steps})"


Rule = Exact | Frozen | Lag | Every | Follows


def steps_behind(rule: Rule) -> int | None:
    """How old the oldest versions are that readers of a layer ask for, in steps.

    None where only the newest is ever read, so that no older ones are kept.
    """
    match rule:
        case Lag(steps) | Follows(_, _, steps):
            return steps
        case Every(steps):
            return 2 * steps - 1
    return None


def most_copies(rule: Rule) -> int:
    """Versions of a layer that are kept for readers at most, beside the newest."""
    behind = steps_behind(rule)
    return 2 if isinstance(rule, Every) else 0 if behind is None else behind + 1


def own_step(rule: Rule) -> OwnStep:
    """How the optimizer of a layer steps, beside what the recipe says."""
    return rule.own_step if isinstance(rule, Lag | Every) else RECIPES


_FORM = re.compile(r"(lag|every)\((0\.\.)?([0-9]{1,99})((?:,[a-z]+(?:=[0-9.e+-]{1,40})?)*)\)")
_FOLLOWS = re.compile(r"follows\(([0-9]{1,9})\.([0-9]{1,9}),([0-9]{1,9})\)")
_OPTIONS: dict[str, Callable[[str], Any]] = {"momentum": float, "lr": float, "over": int}


def parse_rule(text: str) -> Rule:
    """Read a rule's text form: as in ``exact``, ``frozen``, ``lag(8)`` or ``every(4,lr=2)``.

    There is also ``follows(STREAM.BLOCK,K)``, for layers of teachers; nobody gives it by hand.

    Raises:
        ConfigError: for any other text.
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
    """What stands behind a rule's number, or None where it cannot be read."""
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
"""What logs and reports say in place of a rule."""

_FROZEN = Frozen()


@dataclass(frozen=True, slots=True)
class PartlyFrozen:
    """Of a block some of whose candidates have no state; the others follow its rule."""

    rule: Rule
    frozen: frozenset[int]
    """The candidates without state: not none, and not all."""

    def __str__(self) -> str:
        return str(self.rule)


BlockRule = Rule | PartlyFrozen
"""What holds for the layers of one block."""


def rule_of(rules: Sequence[BlockRule], layer: LayerId) -> Rule:
    """How a layer's READs follow its WRITEs.

    Args:
        rules: of each block of the layer's chain.
        layer: which one.
    """
    rule = rules[layer.block]
    if isinstance(rule, PartlyFrozen):
        return _FROZEN if layer.candidate in rule.frozen else rule.rule
    return rule


def with_stateless(
    rules: Sequence[Rule], counts: Sequence[int], stateless: Collection[tuple[int, int]]
) -> tuple[BlockRule, ...]:
    """Rules as blocks name them, but for layers that have no state.

    Args:
        rules: of each block of a chain.
        counts: how many candidates each block has.
        stateless: block and candidate of the layers without parameters and buffers.
    """
    frozen: list[set[int]] = [set() for _ in rules]
    for block, candidate in stateless:
        frozen[block].add(candidate)
    return tuple(map(_of_block, rules, counts, frozen))


def _of_block(rule: Rule, count: int, frozen: set[int]) -> BlockRule:
    if not frozen or isinstance(rule, Frozen):
        return rule
    return PartlyFrozen(rule, frozenset(frozen)) if len(frozen) < count else _FROZEN


def rule_with_state(rule: BlockRule) -> Rule:
    """What holds for those layers of a block that have state."""
    return rule.rule if isinstance(rule, PartlyFrozen) else rule


def grown_up(rule: BlockRule) -> BlockRule:
    """The rule as it is once its lag has grown: what a stream flows by."""
    own = rule_with_state(rule)
    if not isinstance(own, Lag):
        return rule
    grown = replace(own, over=0)
    return replace(rule, rule=grown) if isinstance(rule, PartlyFrozen) else grown


def untrained(rule: BlockRule) -> BlockRule:
    """What holds for the layers of a block in a stream that is not trained."""
    return rule if isinstance(rule_with_state(rule), Follows) else _FROZEN


TEACHER_BUFFERS = ("own", "copied", "averaged")
TEACHER_MODES = ("train", "eval")


@dataclass(frozen=True, slots=True, kw_only=True)
class MomentumUpdate:
    """``teacher.lerp_(student, 1 - tau)`` behind each step of the student, for each parameter.

    Part of a run's definition.

    Raises:
        ConfigError: for a value that cannot be.
    """

    tau: float
    """At the first step, from 0 to 1."""
    end: float | None = None
    """At the last one, reached by a half cosine (BYOL, section 3.2); None for ``tau`` always."""
    buffers: str = "own"
    """``own``: batch statistics of the teacher's own forwards; ``copied`` from the student behind
    each of its steps; or ``averaged`` as parameters are (whole numbers are copied)."""
    mode: str = "train"
    """In which the teacher's forwards run: ``train`` or ``eval``."""

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
        """tau of one step of ``steps``, whatever the order in which they are computed."""
        if self.end is None:
            return self.tau
        falls = 0.5 * (1.0 + math.cos(math.pi * step / max(1, steps)))
        return self.end - (self.end - self.tau) * falls

    def as_dict(self) -> Mapping[str, Any]:
        """Plain values for the manifest."""
        return asdict(self)
