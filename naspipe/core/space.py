"""A search space: a chain of blocks, each with its candidate layers, as plain factories.

Nothing here imports torch: a factory is called only when its layer is first used.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from naspipe.core.errors import ConfigError
from naspipe.core.ids import FIRST_STREAM, LayerId, StreamId
from naspipe.core.ports import Decisions, Proof
from naspipe.core.rules import Every, Exact, Lag, Rule, parse_rule
from naspipe.core.user_code import check_blocks, check_factories
from naspipe.core.wording.known_keywords import knows_keywords

Factory = Callable[[], Any]
"""Makes one candidate: a ``torch.nn.Module`` with freshly initialised parameters."""

_EXACT = Exact()


@knows_keywords
@dataclass(frozen=True, slots=True)
class Block:
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
        given = (tuple(candidates), kind, tuple(fields), rule, alike)
        for name, value in zip(self.__slots__, given, strict=True):
            object.__setattr__(self, name, value)
        if not self.candidates:
            raise ConfigError("a block needs at least one candidate, found none")
        if isinstance(rule, Lag | Every):
            raise ConfigError(f"a choice block: expected the rule exact, found {rule}")


@knows_keywords
@dataclass(frozen=True, slots=True)
class Shared:
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
        object.__setattr__(self, "fields", tuple(self.fields))
        if isinstance(self.rule, str):
            object.__setattr__(self, "rule", parse_rule(self.rule))
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]*", self.name):
            raise ConfigError(
                f"shared layer {self.name!r}: expected a name of letters, digits, - and _"
            )

    @property
    def candidates(self) -> tuple[Factory, ...]:
        """A shared layer is a block with one candidate."""
        return (self.factory,)


@knows_keywords
class Space:
    """A named chain of blocks and shared layers.

    A module takes the tensors that the block before returned, then the batch fields its
    block names. The first block names ``("input",)`` unless it says otherwise.

    Args:
        name: how runs call it.
        blocks: the chain.
        decisions: what samplers draw, where one decision reaches several blocks; without, every
            choice block is a decision of its own.
        proof: what a run asks before it starts, where the layers stand for something else.
        takes_input: the first block names ``("input",)`` unless it says otherwise; without, a tap
            brings it what it is called with.
        weights: digest of the weights that layers begin with, where they are given and not drawn.
    """

    def __init__(
        self,
        name: str,
        blocks: Iterable[Block | Shared],
        decisions: Decisions | None = None,
        proof: Proof | None = None,
        *,
        takes_input: bool = True,
        weights: str = "",
    ) -> None:
        self.name, self.takes_input, self.weights = name, takes_input, weights
        self.decisions, self.proof = decisions, proof
        self.blocks: tuple[Block | Shared, ...] = tuple(blocks)
        check_blocks(name, self.blocks, (Block, Shared))
        self._choice_positions = [
            index for index, block in enumerate(self.blocks) if isinstance(block, Block)
        ]
        self._shared_positions: dict[str, int] = {}
        for index, block in enumerate(self.blocks):
            if isinstance(block, Shared):
                if block.name in self._shared_positions:
                    raise ConfigError(
                        f"space {name}: two shared layers are called {block.name!r}; rename one"
                    )
                self._shared_positions[block.name] = index
        numbers = {position: str(number) for number, position in enumerate(self._choice_positions)}
        self._labels = tuple(
            block.name if isinstance(block, Shared) else numbers[index]
            for index, block in enumerate(self.blocks)
        )
        for block, label in zip(self.blocks, self._labels, strict=True):
            kind = "layer" if isinstance(block, Shared) else "block"
            check_factories(f"space {name}, {kind} {label}", block.candidates)

    def __repr__(self) -> str:
        counts = sorted(set(self.candidate_counts))
        of = " to ".join(map(str, counts[:1] + counts[1:][-1:]))
        said = [f"{len(self.candidate_counts)} choice blocks of {of} candidates"] if counts else []
        said += [f"{name} {rule}" for name, rule in self.shared_rules.items()]
        return f"<Space {self.name}: {', '.join(said[:6] + ['...'] * (len(said) > 6))}>"

    def __len__(self) -> int:
        return len(self.blocks)

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rule of each block of the chain."""
        return tuple(block.rule for block in self.blocks)

    @property
    def candidate_counts(self) -> tuple[int, ...]:
        """Number of candidates of each choice block, shared layers left out."""
        return tuple(len(self.blocks[index].candidates) for index in self._choice_positions)

    @property
    def drawn_counts(self) -> tuple[int, ...]:
        """Number of options of each thing that samplers draw: of decisions, or of choice blocks."""
        return self.candidate_counts if self.decisions is None else tuple(self.decisions.counts)

    @property
    def labels(self) -> tuple[str, ...]:
        """One label per block of the chain: the choice block's number or the shared name."""
        return self._labels

    @property
    def shared_rules(self) -> dict[str, Rule]:
        """The rule of each shared layer, by name."""
        return {name: self.blocks[index].rule for name, index in self._shared_positions.items()}

    def with_rules(self, rules: Mapping[str, Rule]) -> Space:
        """The same space with other rules for some of its shared layers.

        Raises:
            ConfigError: when the space has no shared layer of such a name.
        """
        blocks = list(self.blocks)
        for name, rule in rules.items():
            if name not in self._shared_positions:
                raise ConfigError(
                    f"space {self.name} has no shared layer {name!r}: expected "
                    f"{', '.join(self._shared_positions) or 'no rule, as it has none'}"
                )
            position = self._shared_positions[name]
            blocks[position] = replace(blocks[position], rule=rule)
        more: dict[str, Any] = {"takes_input": self.takes_input, "weights": self.weights}
        return Space(self.name, blocks, self.decisions, self.proof, **more)

    def cut(self, at: Iterable[int | str]) -> list[Space]:
        """The chain in several parts, each a space of its own, called NAME-0, NAME-1, ...

        All but the first are called with what the part before returns. The first one carries the
        proof of the whole.

        Args:
            at: of each part but the first, where it begins: a position of the chain, or the label
                of a block, in rising order.

        Raises:
            ConfigError: for a place that the chain does not have or that comes too late, or for a
                decision that reaches blocks of several parts.
        """
        places = [self._position(place) for place in at]
        ends = [0, *places, len(self)]
        if any(later <= earlier for earlier, later in pairwise(ends)):
            raise ConfigError(
                f"space {self.name}: expected rising places from 1 to {len(self) - 1} to be cut "
                f"at, found {', '.join(map(str, places)) or 'none'}"
            )
        return [self._part(number, *each) for number, each in enumerate(pairwise(ends))]

    def _position(self, place: int | str) -> int:
        if isinstance(place, int):
            return place
        if place not in self._labels:
            raise ConfigError(
                f"space {self.name} has no block {place!r} to be cut at: expected one of "
                f"{', '.join(self._labels)}"
            )
        return self._labels.index(place)

    def _part(self, number: int, begin: int, end: int) -> Space:
        decisions = self.decisions
        if decisions is not None:
            inside = [n for n, at in enumerate(self._choice_positions) if begin <= at < end]
            decisions = decisions.part(range(inside[0], inside[-1] + 1) if inside else range(0))
        return Space(
            f"{self.name}-{number}",
            self.blocks[begin:end],
            decisions,
            None if number else self.proof,
            takes_input=self.takes_input and not number,
            weights=self.weights,
        )

    def fields(self, block: int) -> tuple[str, ...]:
        """Batch fields that the module of this block of the chain is given."""
        named = self.blocks[block].fields
        return named if named or block or not self.takes_input else ("input",)

    def chain(self, choices: Sequence[int]) -> tuple[int, ...]:
        """Turn one choice per choice block into one candidate per block of the chain.

        Raises:
            ConfigError: when the number of choices or a choice does not fit the space.
        """
        counts = self.candidate_counts
        if len(choices) != len(counts):
            raise ConfigError(
                f"space {self.name}: expected {len(counts)} choices, one per choice block, "
                f"found {len(choices)}"
            )
        for number, (choice, count) in enumerate(zip(choices, counts, strict=True)):
            if not 0 <= choice < count:
                raise ConfigError(
                    f"space {self.name}, choice block {number}: expected a choice from 0 to "
                    f"{count - 1}, found {choice}"
                )
        chain = [0] * len(self.blocks)
        for position, choice in zip(self._choice_positions, choices, strict=True):
            chain[position] = int(choice)
        return tuple(chain)

    def label(self, block: int, candidate: int) -> str:
        """``3.1`` for candidate 1 of choice block 3, or a shared layer's name."""
        label = self.labels[block]
        return label if isinstance(self.blocks[block], Shared) else f"{label}.{candidate}"

    def layer(self, label: str, stream: StreamId = FIRST_STREAM) -> LayerId:
        """The layer that a label such as ``3.1`` or ``head`` names.

        Raises:
            ConfigError: when the space has no such layer.
        """
        if label in self._shared_positions:
            return LayerId(stream, self._shared_positions[label], 0)
        if match := re.fullmatch(r"([0-9]{1,9})\.([0-9]{1,9})", label):
            number, candidate = int(match.group(1)), int(match.group(2))
            counts = self.candidate_counts
            if number < len(counts) and candidate < counts[number]:
                return LayerId(stream, self._choice_positions[number], candidate)
        raise ConfigError(
            f"space {self.name} has no layer {label!r}: expected BLOCK.CANDIDATE with a block "
            f"below {len(self.candidate_counts)}, or one of "
            f"{', '.join(self._shared_positions) or 'its shared layers (it has none)'}"
        )
