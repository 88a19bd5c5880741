"""The blocks of a chain: choice blocks, shared and elastic layers, and the block of a loss.

Candidates are plain factories, which are called only when their layer is first used; this module
does not import torch. A factory made in a loop reads the loop's variable when it is called, which
is after the loop has ended. Therefore the numbers and texts that a factory read when its block was
made are recorded, and compared later.
"""

from __future__ import annotations

import dis
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from math import prod
from types import CodeType, FunctionType
from typing import Any
from weakref import WeakKeyDictionary

from naspipe.config.errors import ConfigError
from naspipe.config.rules import Every, Exact, Lag, Rule, parse_rule
from naspipe.config.text import knows_keywords

Factory = Callable[[], Any]
"""Makes one candidate: a ``torch.nn.Module`` with freshly initialized parameters."""

_EXACT = Exact()


def check_name(kind: str, name: Any) -> None:
    """Reject a name that is ambiguous in logs and labels."""
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]*", name):
        raise ConfigError(f"{kind} {name!r}: expected a name of letters, digits, - and _")


def field_names(where: str, fields: Any) -> tuple[str, ...]:
    """Return names of batch fields from a user's list; messages name the block ``where``."""
    names = None if isinstance(fields, str) or not isinstance(fields, Iterable) else tuple(fields)
    if names is None or not all(isinstance(name, str) for name in names):
        todo = f"; write fields=({fields!r:.60},)" if isinstance(fields, str) else ""
        raise ConfigError(
            f"{where}: expected fields to be a list of names of batch fields, found "
            f"{'the text ' * isinstance(fields, str)}{fields!r:.60}{todo}"
        )
    return names


def listed(candidates: Any) -> tuple[Factory, ...]:
    """Return candidates from a user's list; :class:`Space` checks each of them."""
    if isinstance(candidates, str | bytes) or not isinstance(candidates, Iterable):
        kind = getattr(candidates, "__name__", type(candidates).__name__)
        found = f"the text {candidates!r:.40}" if isinstance(candidates, str) else kind
        raise ConfigError(
            f"a choice block: expected a list of factories, as in npp.Block([lambda: ..., "
            f"lambda: ...]), found {found}"
        )
    return tuple(candidates)


class SetsMode:
    """Base of blocks whose modules are put into training or evaluation mode when they are made."""

    __slots__ = ()

    def set_mode(self, module: Any, trains: bool) -> None:
        module.train(trains)


class Whole(SetsMode):
    """Base of blocks whose modules are used as they are: an option has no setting."""

    __slots__ = ()

    @property
    def apply(self) -> Callable[..., Any] | None:
        """The function that computes ``apply(module, *tensors)``; None to call the module."""
        return None

    def setting(self, option: int) -> Mapping[str, Any]:
        return {}

    def forward_of(self, module: Any, option: int) -> Any:
        """Return the function that computes an option from tensors."""
        return module if self.apply is None else partial(self.apply, module)

    def cut_of(self, module: Any, option: int) -> Any:
        return module


class OneCandidate(SetsMode):
    """Base of shared and elastic layers, which have one candidate and a name."""

    __slots__ = ()
    name: str
    factory: Factory
    rule: Rule
    fields: tuple[str, ...]

    def _settle(self, kind: str, where: str) -> None:
        """Check the name, and convert fields and rule from the forms that users may write."""
        check_name(kind, self.name)
        object.__setattr__(self, "fields", field_names(f"{where} {self.name}", self.fields))
        if isinstance(self.rule, str):
            object.__setattr__(self, "rule", parse_rule(self.rule))
        keep_reads(self.candidates)

    @property
    def candidates(self) -> tuple[Factory, ...]:
        return (self.factory,)

    def candidate(self, option: int) -> int:
        return 0


@knows_keywords
@dataclass(frozen=True, slots=True)
class Block(Whole):
    """A choice block, of which every subnet takes one candidate.

    Args:
        candidates: one factory per candidate.
        kind: blocks of the same kind have the same candidates, so their costs are measured once.
        fields: batch fields that the candidate takes after the tensors of the previous block.
        rule: which version READs see; ``Exact()`` except for the layers of teachers.
        alike: True if several candidates may be the same layer; otherwise, a note reports it.
    """

    candidates: tuple[Factory, ...]
    kind: str | None = None
    fields: tuple[str, ...] = ()
    rule: Rule = field(default_factory=Exact)
    alike: bool = False

    def __init__(
        self,
        candidates: Iterable[Factory],
        *,
        kind: str | None = None,
        fields: Sequence[str] = (),
        rule: Rule = _EXACT,
        alike: bool = False,
    ) -> None:
        given = (listed(candidates), kind, field_names("a choice block", fields), rule, alike)
        for name, value in zip(self.__slots__, given, strict=True):
            object.__setattr__(self, name, value)
        if not self.candidates:
            raise ConfigError("a block needs at least one candidate, found none")
        if isinstance(rule, Lag | Every):
            raise ConfigError(f"a choice block: expected the rule exact, found {rule}")
        keep_reads(self.candidates)

    @property
    def num_options(self) -> int:
        return len(self.candidates)

    def candidate(self, option: int) -> int:
        return option


@knows_keywords
@dataclass(frozen=True, slots=True)
class Shared(OneCandidate, Whole):
    """A layer that every subnet uses, with a rule for its READs.

    Args:
        name: in logs, checkpoints and errors.
        factory: makes the module.
        rule: ``Exact()``, ``Frozen()``, ``Lag(K)`` or ``Every(M)``, or its text, as in ``lag(2)``.
        fields: batch fields that the module takes after the tensors of the previous block.
    """

    name: str
    factory: Factory
    rule: Rule = field(default_factory=Exact)
    fields: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self._settle("shared layer", "layer")

    @property
    def num_options(self) -> int:
        return 1


MOST_OPTIONS = 20_000
"""Maximum number of combinations of one layer's settings."""

STEPS = ("whole", "slice")
"""Which entries of a parameter an optimizer step updates."""

_PLAIN = (int, float, str)


@knows_keywords
@dataclass(frozen=True, slots=True)
class Elastic(OneCandidate):
    """A layer that all subnets use, each with its own settings, such as a width or a kernel size.

    There is one module, made with the largest settings, and one chain of versions. A setting is an
    argument of its forward, as ``module(*tensors, width=256)``, and never state of the module.
    Layers that name the same setting share it: it is drawn once for all of them.

    Args:
        name: in logs, checkpoints and errors.
        factory: makes the module.
        settings: the values of each setting, by its name.
        rule: ``Exact()``, ``Lag(K)`` or another of a shared layer, or its text, as in ``lag(2)``.
        fields: batch fields that the module takes after the tensors of the previous block.
        apply: ``apply(module, *tensors, *fields, width=...)`` computes a setting; by default, the
            module is called in this way.
        cut: ``cut(module, width=...)`` returns a module of that setting alone, for export; by
            default, the module's own ``cut(width=...)``.
        step: ``whole``: an optimizer step updates all entries of a parameter, including momentum
            and decay, as in the usual loops. ``slice``: it updates only the entries that a pass of
            the step used, which are those that its ``cut`` takes; the others keep their values and
            optimizer state.
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
        self._settle("elastic layer", "elastic layer")
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

    @property
    def num_options(self) -> int:
        return prod(map(len, self.settings.values()))

    def setting(self, option: int) -> dict[str, Any]:
        """Return the keyword arguments of an option; the last setting varies fastest."""
        found = {}
        for name, values in reversed(list(self.settings.items())):
            option, place = divmod(option, len(values))
            found[name] = values[place]
        return dict(reversed(found.items()))

    def forward_of(self, module: Any, option: int) -> Any:
        call = module if self.apply is None else partial(self.apply, module)
        return partial(call, **self.setting(option))

    def cut_of(self, module: Any, option: int) -> Any:
        """Return a module that computes an option alone."""
        cut = getattr(module, "cut", None) if self.cut is None else partial(self.cut, module)
        if cut is None:
            raise ConfigError(
                f"elastic layer {self.name}: expected Elastic(..., cut=function) or a method cut "
                f"of its {type(module).__name__}, which makes the module of one setting, found none"
            )
        return cut(**self.setting(option))

    def option(self, setting: Mapping[str, Any]) -> int:
        """Return the option with these settings; other keys are ignored.

        Raises:
            ValueError: for a value that is not listed.
        """
        option = 0
        for name, values in self.settings.items():
            option = option * len(values) + values.index(setting[name])
        return option

    def text(self, option: int) -> str:
        """Return the text of an option in logs: ``512``, or ``512,3`` for two settings."""
        return ",".join(map(str, self.setting(option).values()))


def texts_of(settings: Iterable[Sequence[Any]]) -> list[str]:
    """Return the text of each option in logs, from the values of each setting."""
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


LOSS = "loss"


@dataclass(frozen=True, slots=True)
class LossBlock(Shared):
    """The last block of a run whose loss is a module with its own parameters or buffers.

    Its layer is the loss module, which is updated, stored in checkpoints and transferred like any
    other layer. The block returns its input tensors. The loss is computed from these with the
    module of the layer, as part of the same block.

    Args:
        before: the chain without this block.
    """

    before: Any = None

    @property
    def apply(self) -> Callable[..., Any]:
        return lambda module, *tensors: tensors

    def set_mode(self, module: Any, trains: bool) -> None:
        """Leave each part of the loss in the mode set by the user."""


class CopyOf(partial[Any]):
    """A factory whose layers begin as deep copies of a module that the user has made.

    It is a ``functools.partial``, so code that inspects factories finds the module as its argument.
    A run never changes the original.
    """

    def __new__(cls, original: Any, copy: Callable[[Any], Any] = deepcopy) -> CopyOf:
        return super().__new__(cls, copy, original)

    @property
    def original(self) -> Any:
        return self.args[0]

    def in_place(self) -> Any:
        """Return the original itself, for code that may change it, such as a forked process."""
        return self.original


_READ_KINDS = (bool, int, float, complex, str, bytes, type(None))

_FIRST: WeakKeyDictionary[FunctionType, Mapping[str, object]] = WeakKeyDictionary()


def keep_reads(factories: Iterable[object]) -> None:
    """Record the values that factories read now, unless they are already recorded."""
    for factory in factories:
        if (function := _function(factory)) is not None and function not in _FIRST:
            _FIRST[function] = dict(_reads(function))


def changed_reads(factory: object) -> list[tuple[str, object, object]]:
    """Return variables that changed since the block was made: name, value then and value now."""
    function = _function(factory)
    before = _FIRST.get(function, {}) if function is not None else {}
    if function is None or not before:
        return []
    now = dict(_reads(function))
    return [
        (name, value, now[name])
        for name, value in before.items()
        if name in now and (type(value), value) != (type(now[name]), now[name])
    ]


def _function(factory: object) -> FunctionType | None:
    while isinstance(factory, functools.partial):
        factory = factory.func
    return factory if isinstance(factory, FunctionType) else None


def _reads(function: FunctionType) -> Iterator[tuple[str, object]]:
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    for name, cell in cells:
        try:
            value = cell.cell_contents
        except ValueError:  # the cell is empty
            continue
        if _is_plain(value):
            yield name, value
    known = function.__globals__
    for name in sorted(globals_read(function.__code__) & known.keys()):
        if _is_plain(known[name]):
            yield name, known[name]


def _is_plain(value: object) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return isinstance(value, _READ_KINDS)


def globals_read(code: CodeType) -> set[str]:
    """Return names of globals that a function or its nested functions read but do not write."""
    found, written = set[str](), set[str]()
    for each in _codes(code):
        for instruction in dis.get_instructions(each):
            if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                found.add(str(instruction.argval))
            elif instruction.opname == "STORE_GLOBAL":
                written.add(str(instruction.argval))
    return found - written


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)
