"""Choice blocks and shared layers, as plain factories.

Nothing here imports torch: a factory is called only when its layer is first used.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from naspipe.core.blocks.read_variables import keep_reads
from naspipe.core.errors import ConfigError
from naspipe.core.rules import Every, Exact, Lag, Rule, parse_rule
from naspipe.core.wording.known_keywords import knows_keywords

Factory = Callable[[], Any]
"""Makes one candidate: a ``torch.nn.Module`` with freshly initialised parameters."""

_EXACT = Exact()


def check_name(kind: str, name: Any) -> None:
    """Refuse what logs and labels could not tell from something else.

    Raises:
        ConfigError: for a name of other letters than these.
    """
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]*", name):
        raise ConfigError(f"{kind} {name!r}: expected a name of letters, digits, - and _")


def field_names(where: str, fields: Any) -> tuple[str, ...]:
    """Names of batch fields, as a user lists them.

    Args:
        where: how messages call the block.
        fields: the list.

    Raises:
        ConfigError: for anything else, a text among them.
    """
    names = None if isinstance(fields, str) or not isinstance(fields, Iterable) else tuple(fields)
    if names is None or not all(isinstance(name, str) for name in names):
        todo = f"; write fields=({fields!r:.60},)" if isinstance(fields, str) else ""
        raise ConfigError(
            f"{where}: expected fields to be a list of names of batch fields, found "
            f"{'the text ' * isinstance(fields, str)}{fields!r:.60}{todo}"
        )
    return names


def listed(candidates: Any) -> tuple[Factory, ...]:
    """Candidates as a user lists them; what each of them is is looked at by the space.

    Raises:
        ConfigError: for what is no list, such as a text or one factory alone.
    """
    if isinstance(candidates, str | bytes) or not isinstance(candidates, Iterable):
        kind = getattr(candidates, "__name__", type(candidates).__name__)
        found = f"the text {candidates!r:.40}" if isinstance(candidates, str) else kind
        raise ConfigError(
            f"a choice block: expected a list of factories, as in npp.Block([lambda: ..., "
            f"lambda: ...]), found {found}"
        )
    return tuple(candidates)


class SetsMode:
    """Blocks whose modules are put into training or evaluation mode when they are made."""

    __slots__ = ()

    def set_mode(self, module: Any, trains: bool) -> None:
        """Put a module into the mode of its stream."""
        module.train(trains)


class Whole(SetsMode):
    """Blocks whose modules are used as they are: an option has no setting."""

    __slots__ = ()

    @property
    def apply(self) -> Callable[..., Any] | None:
        """Computes the block as ``apply(module, *tensors)``; None to call the module itself."""
        return None

    def setting(self, option: int) -> Mapping[str, Any]:
        """What an option has its module called with, beside tensors."""
        return {}

    def forward_of(self, module: Any, option: int) -> Any:
        """What computes an option, of tensors."""
        return module if self.apply is None else partial(self.apply, module)

    def cut_of(self, module: Any, option: int) -> Any:
        """The module that computes an option alone."""
        return module


@knows_keywords
@dataclass(frozen=True, slots=True)
class Block(Whole):
    """A choice block: the candidates of which every subnet takes one.

    Args:
        candidates: one factory per candidate.
        kind: blocks of one kind have the same candidates, so their costs are measured once.
        fields: batch fields handed to the candidate after the tensors of the block before.
        rule: how READs follow WRITEs; ``Exact()`` but for the layers of teachers.
        alike: candidates may be the same layer twice; otherwise a note says where they are.
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
        """How many a subnet chooses from: every candidate is an option."""
        return len(self.candidates)

    def candidate(self, option: int) -> int:
        """The candidate that an option uses."""
        return option


@knows_keywords
@dataclass(frozen=True, slots=True)
class Shared(Whole):
    """A layer that every subnet uses, with the rule its READs follow.

    Args:
        name: how logs, checkpoints and errors call it.
        factory: makes the module.
        rule: ``Exact()``, ``Frozen()``, ``Lag(K)`` or ``Every(M)``, or its text, as in ``lag(2)``.
        fields: batch fields handed to the module after the tensors of the block before.
    """

    name: str
    factory: Factory
    rule: Rule = field(default_factory=Exact)
    fields: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_name("shared layer", self.name)
        object.__setattr__(self, "fields", field_names(f"layer {self.name}", self.fields))
        if isinstance(self.rule, str):
            object.__setattr__(self, "rule", parse_rule(self.rule))
        keep_reads(self.candidates)

    @property
    def candidates(self) -> tuple[Factory, ...]:
        """A shared layer is a block with one candidate."""
        return (self.factory,)

    @property
    def num_options(self) -> int:
        """There is nothing to choose."""
        return 1

    def candidate(self, option: int) -> int:
        """The only one."""
        return 0
