"""A layer of which subnets use parts: one set of weights, many settings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from math import prod
from typing import Any

from naspipe.core.blocks.block import Factory, SetsMode, check_name, field_names
from naspipe.core.blocks.read_variables import keep_reads
from naspipe.core.errors import ConfigError
from naspipe.core.rules import Every, Exact, Rule, parse_rule
from naspipe.core.wording.known_keywords import knows_keywords

MOST_OPTIONS = 20_000
"""Of one layer, its settings taken together."""

STEPS = ("whole", "slice")
"""What an optimizer step moves."""

_PLAIN = (int, float, str)


@knows_keywords
@dataclass(frozen=True, slots=True)
class Elastic(SetsMode):
    """A layer that every subnet uses with settings of its own: a width, a kernel, heads.

    There is one module, made with the largest settings, and one chain of versions. A setting is an
    argument of its forward, as ``module(*tensors, width=256)``, and never state of the module.
    Several layers that name one setting have it in common: it is drawn once for all of them.

    Args:
        name: how logs, checkpoints and errors call it.
        factory: makes the module.
        settings: the values of each setting, by its name.
        rule: ``Exact()``, ``Lag(K)`` or another of a shared layer, or its text, as in ``lag(2)``.
        fields: batch fields handed to the module after the tensors of the block before.
        apply: ``apply(module, *tensors, *fields, width=...)`` computes a setting; without, the
            module is called so.
        cut: ``cut(module, width=...)`` returns a module of that setting alone, for export; without,
            the module's own ``cut(width=...)`` does.
        step: ``whole``: an optimizer step moves all entries of a parameter, as momentum and decay
            do in the usual loops. ``slice``: those that a pass of the step used, which are those
            that its ``cut`` takes; the others stand still, and so does what the optimizer keeps
            of them.
    """

    name: str
    factory: Factory
    settings: Mapping[str, Sequence[Any]]
    rule: Rule = field(default_factory=Exact)
    fields: tuple[str, ...] = ()
    apply: Callable[..., Any] | None = None
    cut: Callable[..., Any] | None = None
    step: str = "whole"

    def __post_init__(self) -> None:
        check_name("elastic layer", self.name)
        object.__setattr__(self, "fields", field_names(f"elastic layer {self.name}", self.fields))
        if isinstance(self.rule, str):
            object.__setattr__(self, "rule", parse_rule(self.rule))
        object.__setattr__(self, "settings", _checked(self.name, self.settings))
        for what in ("apply", "cut"):
            function = getattr(self, what)
            if function is not None and not callable(function):
                raise ConfigError(
                    f"elastic layer {self.name}: expected {what} to be a function of the module "
                    f"and settings, found {type(function).__name__}"
                )
        if self.step not in STEPS:
            raise ConfigError(
                f"elastic layer {self.name}: expected step to be one of {', '.join(STEPS)}, found "
                f"{self.step!r:.80}"
            )
        if self.step == "slice" and isinstance(self.rule, Every):
            raise ConfigError(
                f"elastic layer {self.name}: expected the rule exact or lag(K) with "
                f'step="slice", found {self.rule}'
            )
        keep_reads(self.candidates)

    @property
    def candidates(self) -> tuple[Factory, ...]:
        """All options are parts of one candidate."""
        return (self.factory,)

    @property
    def num_options(self) -> int:
        """How many settings a subnet chooses from, taken together."""
        return prod(map(len, self.settings.values()))

    def candidate(self, option: int) -> int:
        """The only one."""
        return 0

    def setting(self, option: int) -> dict[str, Any]:
        """What an option has its module called with, beside tensors.

        Of neighbouring options the last setting differs.
        """
        found = {}
        for name, values in reversed(list(self.settings.items())):
            option, place = divmod(option, len(values))
            found[name] = values[place]
        return dict(reversed(found.items()))

    def forward_of(self, module: Any, option: int) -> Any:
        """What computes an option, of tensors."""
        call = module if self.apply is None else partial(self.apply, module)
        return partial(call, **self.setting(option))

    def cut_of(self, module: Any, option: int) -> Any:
        """A module that computes an option alone.

        Raises:
            ConfigError: where neither the layer nor its module says how.
        """
        cut = getattr(module, "cut", None) if self.cut is None else partial(self.cut, module)
        if cut is None:
            raise ConfigError(
                f"elastic layer {self.name}: expected Elastic(..., cut=function) or a method cut "
                f"of its {type(module).__name__}, which makes the module of one setting, found none"
            )
        return cut(**self.setting(option))

    def option(self, setting: Mapping[str, Any]) -> int:
        """Which option a value of each setting is; others are left out.

        Raises:
            ValueError: for a value that is not among them.
        """
        option = 0
        for name, values in self.settings.items():
            option = option * len(values) + values.index(setting[name])
        return option

    def text(self, option: int) -> str:
        """How logs call an option: ``512``, or ``512,3`` of two settings."""
        return ",".join(map(str, self.setting(option).values()))


def texts_of(settings: Iterable[Sequence[Any]]) -> list[str]:
    """How logs call each option, of the values of each setting."""
    return [",".join(map(str, values)) for values in product(*settings)]


def _checked(name: str, settings: Any) -> dict[str, tuple[Any, ...]]:
    if not isinstance(settings, Mapping) or not settings:
        raise ConfigError(
            f"elastic layer {name}: expected settings as in {{'width': [256, 512]}}, found "
            f"{settings!r:.80}"
        )
    found: dict[str, tuple[Any, ...]] = {}
    for label, values in settings.items():
        if not isinstance(label, str) or not label.isidentifier():
            raise ConfigError(
                f"elastic layer {name}: expected the name of a setting as a keyword argument has "
                f"it, found {label!r:.80}"
            )
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise ConfigError(
                f"elastic layer {name}, setting {label}: expected a list of values, found "
                f"{values!r:.80}"
            )
        wrong = [value for value in values if not isinstance(value, _PLAIN)]
        if wrong or len(set(map(str, values))) < len(values):
            what = f"the value {wrong[0]!r:.80}" if wrong else f"a value twice in {list(values)}"
            raise ConfigError(
                f"elastic layer {name}, setting {label}: expected numbers, truth values or texts, "
                f"all different, found {what}"
            )
        found[label] = tuple(values)
    if (count := prod(map(len, found.values()))) > MOST_OPTIONS:
        raise ConfigError(
            f"elastic layer {name}: its settings {', '.join(found)} have {count} values together, "
            f"expected at most {MOST_OPTIONS}"
        )
    return found
