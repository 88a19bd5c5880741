"""Which layer of each block an architecture has, and which architecture a subnet is.

A label may reach several blocks: cells that are all alike, a depth, a width that runs through
the whole network. Subnets are therefore drawn over labels, and their choices follow.
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
"""Values that the labels of one block may take together."""

Key = tuple[int, ...]
"""What distinguishes the layers of a block: 0 and the numbers of the values, or 1 for left out."""


class BlockLayers:
    """The layers of one block: an architecture's number, and an architecture that has it.

    Layers are numbered in the order of the choices' candidates; one that stands for a repetition
    that is left out comes last.
    """

    def __init__(self, draft: Draft, values: Mapping[str, Sequence[Any]], where: str) -> None:
        self._draft = draft
        self._values = values
        self.where = where
        """How messages call the block."""
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
        """How many each layer has, if known; see ``shared_sizes``."""

    def number(self, sample: Sample) -> int:
        return self._numbers[self._key(sample)]

    def wanted(self, number: int, given: Sample) -> Sample | None:
        """Return the block's labels in an architecture with a layer and these values, if any."""
        trial = {**self.samples[number], **given}
        if self.number(trial) != number:
            return None
        return {label: trial[label] for label in self.labels}

    def allowed(self, number: int) -> Mapping[str, Sequence[Any]]:
        """Return the values of each label of the block that some architecture with a layer has.

        What the nodes of a cell read is left to the blocks that choose it.
        """
        return self._allowed[number]

    def decided(self) -> list[dict[str, list[str]]]:
        """Return the labels that decide each layer, with the values that it has."""
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
    """Return a value as ``domains`` lists it: what an InputChoice chose is a list."""
    return list(value) if isinstance(value, tuple) else value


class LabelDecisions:
    """How the values of a model space's labels become one choice per choice block.

    Args:
        values: every label and its values, in the order in which they are drawn.
        blocks: the layers of each choice block.
        name: of the space.
        mutables: what NNI has for each label.
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
        """Return the subnet whose labels have the values of these numbers."""
        sample = {
            label: options[number]
            for (label, options), number in zip(self.values.items(), drawn, strict=True)
        }
        return self.choices_of(sample)

    def choices_of(self, sample: Mapping[str, Any]) -> tuple[int, ...]:
        """Return the subnet that is an architecture in NNI's form.

        Raises:
            ConfigError: when a label is missing, or has a value that it does not allow.
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
        """Return what :meth:`choices` takes, for an architecture in NNI's form."""
        return tuple(
            options.index(_as_listed(sample[label])) for label, options in self.values.items()
        )

    def drawn(self, choices: Sequence[int]) -> tuple[int, ...]:
        """Return what :meth:`choices` takes, for a subnet; raises as :meth:`sample_of`."""
        return self.numbers(self.sample_of(choices))

    def decided(self) -> list[list[dict[str, list[str]]]]:
        """See :class:`naspipe.config.ports.Decisions`; values as they are printed.

        A layer of many sizes is one, whatever labels have.
        """
        return [[{}] if block.parameters else block.decided() for block in self.blocks]

    def extremes(self, size: Callable[[int, int], int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the choices of the largest architecture, and of the smallest.

        Each label has the value with which the architecture has the most parameters, or the fewest;
        among equal ones the largest or the smallest number, else the first value.
        """

        def weight(sample: Sample) -> int:
            layers = enumerate(zip(self.blocks, self.choices_of(sample), strict=True))
            return sum(
                own.parameters[n] if own.parameters else size(at, n) for at, (own, n) in layers
            )

        found = []
        for sign in (1, -1):
            sample = {label: options[0] for label, options in self.values.items()}
            for _ in range(2):  # what a depth leaves out at first counts the second time
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
            ConfigError: when there is none, because two blocks contradict each other.
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
        """Return the first choice block that a label reaches, as the space's labels call it."""
        for number, block in enumerate(self.blocks):
            if label in block.labels:
                return str(number)
        raise ConfigError(
            f"space {self._name} has no label {label!r}: expected one of {', '.join(self.values)}"
        )

    def part(self, blocks: range) -> LabelDecisions:
        """Return the decisions over some blocks; raise if a label reaches others, too."""
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
