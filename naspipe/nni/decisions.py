"""Which layer of each block an architecture has, and which architecture a subnet is.

A label may affect several blocks: identical cells, a depth, or a width used in the whole network.
Subnets are therefore drawn over labels, which determine their choices.
"""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

from naspipe.config.errors import ConfigError
from naspipe.nni.cut import Draft, Kind
from naspipe.nni.library import Sample, labels_in, library
from naspipe.nni.trace import input_labels, open_ends, variants

MAX_COMBINATIONS = 20_000
"""Maximum number of combinations of values of the labels of one block."""

Key = tuple[int, ...]
"""Identifies a layer of a block: 0 and the numbers of the values, or 1 if it is omitted."""


class BlockLayers:
    """Maps architectures to the layers of one block, and each layer to an architecture that has it.

    Layers are numbered in the order of the choices' candidates; the layer of an omitted repetition
    comes last.
    """

    def __init__(self, draft: Draft, values: Mapping[str, Sequence[Any]], where: str) -> None:
        self._draft = draft
        self._values = values
        self.where = where
        """Name of the block in messages."""
        found = {*draft.labels, *(label for region in draft.regions for label in region.labels)}
        own = sorted(found.union(*map(labels_in, draft.modules)))
        read = [label for cell in draft.cells for label in input_labels(cell)]
        self.labels = tuple(sorted({*own, *read}))
        self._own = tuple(label for label in own if label not in read)
        listed = [values[label] for label in self._own]
        if (count := math.prod(map(len, listed))) > MAX_COMBINATIONS:
            raise ConfigError(
                f"{where}: its labels {', '.join(self._own)} have {count} values together, "
                f"expected at most {MAX_COMBINATIONS}; let fewer labels reach this place"
            )
        defaults = {label: options[0] for label, options in values.items()}
        samples: dict[Key, Sample] = {}
        allowed: dict[Key, dict[str, list[Any]]] = {}
        by_number = draft.kind is not Kind.ENDS
        reading = [tuple(variants(cell, by_number=by_number)) for cell in draft.cells]
        for combination in product(*listed):
            chosen = dict(zip(self._own, combination, strict=True))
            for each in product(*reading):
                sample = {**defaults, **chosen, **ChainMap(*each)}
                samples.setdefault(key := self._key(sample), sample)
                own_values = allowed.setdefault(key, {label: [] for label in self._own})
                for label, value in chosen.items():
                    if value not in own_values[label]:
                        own_values[label].append(value)
        self._keys = sorted(samples)
        self._allowed = [allowed[key] for key in self._keys]
        self.samples: tuple[Sample, ...] = tuple(samples[key] for key in self._keys)
        self._numbers = {key: number for number, key in enumerate(self._keys)}
        self.parameters: tuple[int, ...] = ()
        """Number of parameters of each layer, if known; see ``shared_sizes``."""

    def number(self, sample: Sample) -> int:
        return self._numbers[self._key(sample)]

    def wanted(self, number: int, given: Sample) -> Sample | None:
        """Return the block's labels in an architecture with a layer and these values, if any."""
        trial = {**self.samples[number], **given}
        if self.number(trial) != number:
            return None
        return {label: trial[label] for label in self.labels}

    def allowed(self, number: int) -> Mapping[str, Sequence[Any]]:
        """Return, for each label of the block, its values in architectures with a given layer.

        The inputs of a cell's nodes are left to the blocks that choose them.
        """
        return self._allowed[number]

    def decided(self) -> list[dict[str, list[str]]]:
        """Return the labels that determine each layer, with the values under which it is used."""
        return [
            {
                label: [str(value) for value in values]
                for label, values in each.items()
                if len(values) < len(self._values[label])
            }
            for each in self._allowed
        ]

    def _key(self, sample: Sample) -> Key:
        if not all(region.is_active(sample) for region in self._draft.regions):
            return (1,)
        key = [0]
        labels = list(self._draft.labels)
        for module in self._draft.modules:
            if isinstance(module, (library().layer_choice, library().input_choice)):
                key.append(self._index(module.label, sample))
                if isinstance(module, library().layer_choice):
                    labels += labels_in(module[sample[module.label]])
        for cell in self._draft.cells:
            ends = open_ends(cell, sample)
            key += [len(ends), *(ends if self._draft.kind is Kind.ENDS else ())]
        return (*key, *(self._index(label, sample) for label in labels))

    def _index(self, label: str, sample: Sample) -> int:
        return self._values[label].index(sample[label])


def _as_listed(value: Any) -> Any:
    """Return a value in the form of ``domains``, in which the value of an InputChoice is a list."""
    return list(value) if isinstance(value, tuple) else value


class LabelDecisions:
    """How the values of a model space's labels become one choice per choice block.

    Args:
        values: every label and its values, in the order in which they are drawn.
        blocks: the layers of each choice block.
        name: name of the space.
        mutables: NNI's mutable for each label.
    """

    def __init__(
        self,
        values: Mapping[str, Sequence[Any]],
        blocks: Sequence[BlockLayers],
        name: str,
        mutables: Mapping[str, Any],
    ) -> None:
        self.values = {label: tuple(options) for label, options in values.items()}
        self.mutables = dict(mutables)
        self.blocks = tuple(blocks)
        self._name = name

    @property
    def counts(self) -> tuple[int, ...]:
        return tuple(map(len, self.values.values()))

    def choices(self, drawn: Sequence[int]) -> tuple[int, ...]:
        """Return the subnet whose labels have the values with these numbers."""
        sample = {
            label: options[number]
            for (label, options), number in zip(self.values.items(), drawn, strict=True)
        }
        return self.choices_of(sample)

    def choices_of(self, sample: Mapping[str, Any]) -> tuple[int, ...]:
        """Return the subnet that corresponds to an architecture in NNI's form.

        Raises:
            ConfigError: if a label is missing, or has a value that is not allowed.
        """
        sample = {label: _as_listed(value) for label, value in sample.items()}
        for label, options in self.values.items():
            if label not in sample or sample[label] not in options:
                found = repr(sample[label]) if label in sample else "nothing"
                raise ConfigError(
                    f"space {self._name}, label {label}: expected one of "
                    f"{', '.join(map(repr, options))}, found {found}"
                )
        return tuple(block.number(dict(sample)) for block in self.blocks)

    def numbers(self, sample: Mapping[str, Any]) -> tuple[int, ...]:
        """Return the argument of :meth:`choices` for an architecture in NNI's form."""
        return tuple(
            options.index(_as_listed(sample[label])) for label, options in self.values.items()
        )

    def drawn(self, choices: Sequence[int]) -> tuple[int, ...]:
        """Return the argument of :meth:`choices` for a subnet; raises like :meth:`sample_of`."""
        return self.numbers(self.sample_of(choices))

    def decided(self) -> list[list[dict[str, list[str]]]]:
        """See :class:`naspipe.config.ports.Decisions`; values are given in printed form.

        A layer of several sizes counts as one layer for all values of its labels.
        """
        return [[{}] if block.parameters else block.decided() for block in self.blocks]

    def extremes(self, size: Callable[[int, int], int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the choices of the largest architecture, and of the smallest.

        Each label has the value that gives the architecture the most parameters, or the fewest;
        ties are broken by the largest or the smallest number, then by the first value.
        """

        def weight(sample: Sample) -> int:
            layers = enumerate(zip(self.blocks, self.choices_of(sample), strict=True))
            return sum(
                own.parameters[n] if own.parameters else size(at, n) for at, (own, n) in layers
            )

        found = []
        for sign in (1, -1):
            sample = {label: options[0] for label, options in self.values.items()}
            for _ in range(2):  # layers omitted by a depth at first are counted in the second pass
                for label, options in self.values.items():
                    numbers = [each if isinstance(each, int | float) else 0.0 for each in options]
                    ranks = [
                        (sign * weight({**sample, label: value}), sign * number)
                        for value, number in zip(options, numbers, strict=True)
                    ]
                    sample[label] = options[ranks.index(max(ranks))]
            found.append(self.choices_of(sample))
        return found[0], found[1]

    def sample_of(self, choices: Sequence[int]) -> Sample:
        """Return an architecture in NNI's form for a subnet; labels without effect have any value.

        Raises:
            ConfigError: if there is none, because two blocks contradict each other.
        """
        left = {label: list(options) for label, options in self.values.items()}
        for block, number in zip(self.blocks, choices, strict=True):
            for label, allowed in block.allowed(number).items():
                left[label] = [value for value in left[label] if value in allowed]
        if all(left.values()):
            sample = {label: options[0] for label, options in left.items()}
            if self.choices_of(sample) == tuple(choices):
                return sample
        raise ConfigError(
            f"space {self._name}: the choices {list(choices)} are no architecture of it, as blocks "
            f"that share a label differ"
        )

    def first_block(self, label: str) -> str:
        """Return the first choice block that a label affects, as named in the space's labels."""
        for number, block in enumerate(self.blocks):
            if label in block.labels:
                return str(number)
        raise ConfigError(
            f"space {self._name} has no label {label!r}: expected one of {', '.join(self.values)}"
        )

    def part(self, blocks: range) -> LabelDecisions:
        """Return the decisions over some blocks; raise if a label also affects other blocks."""
        inside = self.blocks[blocks.start : blocks.stop]
        outside = (*self.blocks[: blocks.start], *self.blocks[blocks.stop :])
        names = {label for block in inside for label in block.labels}
        if reached := sorted(names & {label for block in outside for label in block.labels}):
            raise ConfigError(
                f"space {self._name}: expected it to be cut where no label is on both sides, found "
                f"{reached[0]} on both"
            )
        values = {label: options for label, options in self.values.items() if label in names}
        mutables = {label: each for label, each in self.mutables.items() if label in names}
        return LabelDecisions(values, inside, self._name, mutables)
