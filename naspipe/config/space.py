"""A search space: a chain of blocks, each with its candidate layers, as plain factories.

If layers are elastic, subnets are drawn over decisions, one for each name of a setting.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from naspipe.config.blocks import Block, Elastic, Shared
from naspipe.config.errors import ConfigError
from naspipe.config.ids import FIRST_STREAM, LayerId, SequenceId, StreamId, Subnet
from naspipe.config.ports import Decisions, Proof
from naspipe.config.rules import Exact, Rule
from naspipe.config.text import knows_keywords
from naspipe.config.user_code import check_blocks, check_factories

AnyBlock = Block | Shared | Elastic


@knows_keywords
class Space:
    """A named chain of blocks and shared layers.

    A module takes the tensors that the previous block returned, followed by the batch fields that
    its block names.

    Args:
        name: the name of the space in runs and messages.
        blocks: the chain.
        decisions: the decisions that samplers draw, if one affects several blocks; by default,
            every choice block is a decision.
        proof: checked before a run starts, if the layers replace others.
        takes_input: True if the first block takes the field ``input`` unless it names others; if
            False, a tap provides its arguments.
        weights: digest of the initial weights if they are given instead of drawn.
    """

    def __init__(
        self,
        name: str,
        blocks: Iterable[AnyBlock],
        decisions: Decisions | None = None,
        proof: Proof | None = None,
        *,
        takes_input: bool = True,
        weights: str = "",
    ) -> None:
        self.name, self.takes_input, self.weights, self.proof = name, takes_input, weights, proof
        self.blocks: tuple[AnyBlock, ...] = tuple(blocks)
        check_blocks(name, self.blocks, (Block, Shared, Elastic))
        self._choice_positions = [
            index for index, block in enumerate(self.blocks) if not isinstance(block, Shared)
        ]
        self._named: dict[str, int] = {}
        """Positions of shared and elastic layers."""
        for index, block in enumerate(self.blocks):
            if not isinstance(block, Block):
                if block.name in self._named:
                    raise ConfigError(
                        f"space {name}: two shared layers are called {block.name!r}; rename one"
                    )
                self._named[block.name] = index
        numbers = {position: str(number) for number, position in enumerate(self._choice_positions)}
        self._labels = tuple(
            numbers[index] if isinstance(block, Block) else block.name
            for index, block in enumerate(self.blocks)
        )
        for block, label in zip(self.blocks, self._labels, strict=True):
            kind = "block" if isinstance(block, Block) else "layer"
            check_factories(f"space {name}, {kind} {label}", block.candidates)
        self.is_elastic = any(isinstance(block, Elastic) for block in self.blocks)
        self.decisions = decisions
        if decisions is None and self.is_elastic:
            choosing = [block for block in self.blocks if not isinstance(block, Shared)]
            own_labels = [self._labels[position] for position in self._choice_positions]
            self.decisions = SettingDecisions(name, choosing, own_labels)

    def __repr__(self) -> str:
        counts = [block.num_options for block in self.blocks if isinstance(block, Block)]
        of = " to ".join(map(str, sorted({min(counts), max(counts)}))) if counts else ""
        said = [f"{len(counts)} choice blocks of {of} candidates"] if counts else []
        settings = self.decisions.values if isinstance(self.decisions, SettingDecisions) else {}
        said += [f"{name} of {len(own)}" for name, own in settings.items() if name.isidentifier()]
        said += [f"{name} {rule}" for name, rule in self.shared_rules.items()]
        return f"<Space {self.name}: {', '.join(said[:6] + ['...'] * (len(said) > 6))}>"

    def __len__(self) -> int:
        return len(self.blocks)

    @property
    def rules(self) -> tuple[Rule, ...]:
        return tuple(block.rule for block in self.blocks)

    @property
    def candidate_counts(self) -> tuple[int, ...]:
        """Number of options of each choice block and elastic layer, without shared layers."""
        return tuple(self.blocks[index].num_options for index in self._choice_positions)

    @property
    def drawn_counts(self) -> tuple[int, ...]:
        """Number of options of each decision that samplers draw, or of each choice block."""
        return self.candidate_counts if self.decisions is None else tuple(self.decisions.counts)

    @property
    def labels(self) -> tuple[str, ...]:
        """One label per block of the chain: the choice block's number, or the layer's name."""
        return self._labels

    @property
    def stays(self) -> tuple[bool, ...]:
        """For each block, True if its only layer stays on its stage.

        That is the case for a shared layer, and for an elastic layer whose readers may use several
        versions.
        """
        return tuple(
            not isinstance(block, Block)
            and (isinstance(block, Shared) or not isinstance(block.rule, Exact))
            for block in self.blocks
        )

    @property
    def shared_rules(self) -> dict[str, Rule]:
        """The rule of each shared or elastic layer, by name."""
        return {name: self.blocks[index].rule for name, index in self._named.items()}

    def with_rules(self, rules: Mapping[str, Rule]) -> Space:
        """Return the same space with other rules for some of its shared layers."""
        blocks = list(self.blocks)
        for name, rule in rules.items():
            if name not in self._named:
                raise ConfigError(
                    f"space {self.name} has no shared layer {name!r}: expected "
                    f"{', '.join(self._named) or 'no rule, as it has none'}"
                )
            position = self._named[name]
            blocks[position] = replace(blocks[position], rule=rule)
        return self._with(blocks, self.weights)

    def followed_by(self, block: Shared, weights: str | None = None) -> Space:
        """Return the chain with one more block; ``weights`` replaces the weights' digest."""
        return self._with([*self.blocks, block], self.weights if weights is None else weights)

    def _with(self, blocks: Sequence[AnyBlock], weights: str) -> Space:
        proof, takes_input = self.proof, self.takes_input
        return Space(
            self.name, blocks, self.decisions, proof, takes_input=takes_input, weights=weights
        )

    def cut(self, at: Iterable[int | str]) -> list[Space]:
        """Divide the chain into several spaces, called NAME-0, NAME-1, ...

        All except the first take the output of the previous part. The first one has the proof of
        the whole.

        Args:
            at: the beginning of each part except the first: a position in the chain or the label of
                a block, in rising order.
        """
        places = []
        for place in at:
            if not isinstance(place, int) and place not in self._labels:
                raise ConfigError(
                    f"space {self.name} has no block {place!r} to be cut at: expected one of "
                    f"{', '.join(self._labels)}"
                )
            places.append(place if isinstance(place, int) else self._labels.index(place))
        ends = [0, *places, len(self)]
        if any(later <= earlier for earlier, later in pairwise(ends)):
            raise ConfigError(
                f"space {self.name}: expected rising places from 1 to {len(self) - 1} to be cut "
                f"at, found {', '.join(map(str, places)) or 'none'}"
            )
        return [self._part(number, *each) for number, each in enumerate(pairwise(ends))]

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
        """Return the batch fields that the module of a block of the chain takes."""
        named = self.blocks[block].fields
        return named if named or block or not self.takes_input else ("input",)

    def chain(self, choices: Sequence[int]) -> tuple[int, ...]:
        """Turn one choice per choice block and elastic layer into one option per block."""
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

    def choices(self, chain: Sequence[int]) -> tuple[int, ...]:
        """Invert :meth:`chain`."""
        return tuple(chain[position] for position in self._choice_positions)

    def subnet(self, stream: StreamId, number: int, chain: Sequence[int]) -> Subnet:
        """Return a subnet with these options, one per block of the chain."""
        candidates: tuple[int, ...] = ()
        if self.is_elastic:
            pairs = zip(self.blocks, chain, strict=True)
            candidates = tuple(block.candidate(option) for block, option in pairs)
        return Subnet(stream, SequenceId(number), tuple(chain), candidates)

    def label(self, block: int, candidate: int) -> str:
        """Return ``3.1`` for candidate 1 of choice block 3, or the name of the layer."""
        label = self.labels[block]
        return f"{label}.{candidate}" if isinstance(self.blocks[block], Block) else label

    def option_label(self, block: int, option: int) -> str:
        """Return the label of an option; ``fc[512]`` for a setting of an elastic layer."""
        own = self.blocks[block]
        label = self.label(block, own.candidate(option))
        return f"{label}[{own.text(option)}]" if isinstance(own, Elastic) else label

    def layer(self, label: str, stream: StreamId = FIRST_STREAM) -> LayerId:
        """Return the layer with a label such as ``3.1`` or ``head``."""
        if label in self._named:
            return LayerId(stream, self._named[label], 0)
        if match := re.fullmatch(r"([0-9]{1,9})\.([0-9]{1,9})", label):
            number, candidate = int(match.group(1)), int(match.group(2))
            counts = self.candidate_counts
            if number < len(counts) and candidate < counts[number]:
                position = self._choice_positions[number]
                if isinstance(self.blocks[position], Block):
                    return LayerId(stream, position, candidate)
        raise ConfigError(
            f"space {self.name} has no layer {label!r}: expected BLOCK.CANDIDATE with a block "
            f"below {len(self.candidate_counts)}, or one of "
            f"{', '.join(self._named) or 'its shared layers (it has none)'}"
        )


class SettingDecisions:
    """One decision per name of a setting, for all its layers; other blocks are independent.

    Decisions are in the order in which their names first occur in the chain.

    Args:
        name: of the space.
        choosing: its choice blocks and elastic layers, in order.
        labels: the label of each of them.
    """

    def __init__(
        self, name: str, choosing: Sequence[Block | Elastic], labels: Sequence[str]
    ) -> None:
        self._name, self._choosing, self._labels = name, tuple(choosing), tuple(labels)
        self.values: dict[str, tuple[Any, ...]] = {}
        """Values of each decision, by the name of the setting or the number of the block."""
        first: dict[str, str] = {}
        for label, block in zip(labels, choosing, strict=True):
            for setting, values in _values(label, block).items():
                found = self.values.setdefault(setting, values)
                if found != values:
                    raise ConfigError(
                        f"space {name}, layer {label}: expected the setting {setting} to have the "
                        f"values of layer {first[setting]}, {list(found)}, found {list(values)}; "
                        f"give it another name where it is another decision"
                    )
                first.setdefault(setting, label)

    @property
    def counts(self) -> tuple[int, ...]:
        return tuple(map(len, self.values.values()))

    def choices(self, drawn: Sequence[int]) -> tuple[int, ...]:
        """Return one choice per choice block and elastic layer, from one value per decision."""
        pairs = zip(self.values.items(), drawn, strict=True)
        return self._choices({label: values[number] for (label, values), number in pairs})

    def choices_of(self, sample: Mapping[str, Any]) -> tuple[int, ...]:
        """Return the choices from the values of all settings and the candidates of all blocks."""
        for label in (*self.values, *sample):
            if label not in self.values:
                raise ConfigError(
                    f"space {self._name} has no setting {label!r:.80}: expected "
                    f"{', '.join(self.values)}"
                )
            if label not in sample or sample[label] not in self.values[label]:
                found = repr(sample[label])[:80] if label in sample else "nothing"
                raise ConfigError(
                    f"space {self._name}, setting {label}: expected one of "
                    f"{', '.join(map(repr, self.values[label]))}, found {found}"
                )
        return self._choices(sample)

    def drawn(self, choices: Sequence[int]) -> tuple[int, ...]:
        """Invert :meth:`choices`."""
        sample: dict[str, Any] = {}
        for label, block, choice in zip(self._labels, self._choosing, choices, strict=True):
            own = block.setting(choice) if isinstance(block, Elastic) else {label: choice}
            for setting, value in own.items():
                if sample.setdefault(setting, value) != value:
                    raise ConfigError(
                        f"space {self._name}: the choices {list(choices)} are no subnet of it, as "
                        f"layer {label} has the setting {setting} {value!r}, one before "
                        f"{sample[setting]!r}"
                    )
        return tuple(values.index(sample[label]) for label, values in self.values.items())

    def decided(self) -> tuple[()]:
        """Return nothing, because the space describes the settings of its layers."""
        return ()

    def extremes(self, size: Callable[[int, int], int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the choices of the largest subnet, and of the smallest.

        Numbers are compared by value, other values by their position in the list (smallest first),
        and candidates by ``size(choice block, candidate)``; the first one wins a tie.
        """
        largest: dict[str, Any] = {}
        smallest: dict[str, Any] = {}
        for label, values in self.values.items():
            sizes: list[Any] = list(range(len(values)))
            if label.isdecimal():  # no setting has such a name
                number = self._labels.index(label)
                sizes = [size(number, candidate) for candidate in values]
            elif not any(isinstance(value, str) for value in values):
                sizes = list(values)
            largest[label] = values[sizes.index(max(sizes))]
            smallest[label] = values[sizes.index(min(sizes))]
        return self._choices(largest), self._choices(smallest)

    def part(self, blocks: range) -> SettingDecisions:
        """Return the decisions of some of the choice blocks and elastic layers."""
        inside = SettingDecisions(
            self._name, self._choosing[blocks.start : blocks.stop],
            self._labels[blocks.start : blocks.stop],
        )  # fmt: skip
        for number, block in enumerate(self._choosing):
            shared = () if number in blocks else inside.values.keys() & _values("", block).keys()
            if shared:
                raise ConfigError(
                    f"space {self._name}: expected it to be cut where no setting is on both sides, "
                    f"found {min(shared)} in layer {self._labels[number]}, too"
                )
        return inside

    def _choices(self, sample: Mapping[str, Any]) -> tuple[int, ...]:
        return tuple(
            block.option(sample) if isinstance(block, Elastic) else sample[label]
            for label, block in zip(self._labels, self._choosing, strict=True)
        )


def _values(label: str, block: Block | Elastic) -> dict[str, tuple[Any, ...]]:
    if isinstance(block, Elastic):
        return {name: tuple(values) for name, values in block.settings.items()}
    return {label: tuple(range(block.num_options))}
