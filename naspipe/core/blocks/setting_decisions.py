"""What subnets are drawn over where layers are elastic: one decision for each name of a setting."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from naspipe.core.blocks.block import Block
from naspipe.core.blocks.elastic import Elastic
from naspipe.core.errors import ConfigError


class SettingDecisions:
    """Settings of one name are one decision, whichever layers have it; other blocks choose alone.

    Decisions are in the order in which the chain names them.

    Args:
        name: of the space.
        choosing: its choice blocks and elastic layers, in their order.
        labels: how the space calls each of them.

    Raises:
        ConfigError: where one name has two lists of values.
    """

    def __init__(
        self, name: str, choosing: Sequence[Block | Elastic], labels: Sequence[str]
    ) -> None:
        self._name, self._choosing, self._labels = name, tuple(choosing), tuple(labels)
        self.values: dict[str, tuple[Any, ...]] = {}
        """Of each decision, by its name: of a setting, or the number of a block."""
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
        """The number of values of each decision."""
        return tuple(map(len, self.values.values()))

    def choices(self, drawn: Sequence[int]) -> tuple[int, ...]:
        """One choice per choice block and elastic layer, from one value per decision."""
        pairs = zip(self.values.items(), drawn, strict=True)
        return self._choices({label: values[number] for (label, values), number in pairs})

    def choices_of(self, sample: Mapping[str, Any]) -> tuple[int, ...]:
        """The same from the value of every setting, and of every choice block the candidate.

        Raises:
            ConfigError: when one is missing or unknown, or has a value that no layer has.
        """
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
        """What :meth:`choices` makes these choices of.

        Raises:
            ConfigError: when two layers have different values of one setting.
        """
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
        """Nothing: a space describes the settings of its layers."""
        return ()

    def extremes(self, size: Callable[[int, int], int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The choices of the largest subnet, and of the smallest.

        Numbers count by their value, others in the order in which they are listed, the smallest
        first; a candidate by its size, the lower one where several have as much.

        Args:
            size: parameters, by the number of a choice block and a candidate.
        """
        largest: dict[str, Any] = {}
        smallest: dict[str, Any] = {}
        for label, values in self.values.items():
            sizes: list[Any] = list(range(len(values)))
            if label.isdecimal():  # as no setting is called
                number = self._labels.index(label)
                sizes = [size(number, candidate) for candidate in values]
            elif not any(isinstance(value, str) for value in values):
                sizes = list(values)
            largest[label] = values[sizes.index(max(sizes))]
            smallest[label] = values[sizes.index(min(sizes))]
        return self._choices(largest), self._choices(smallest)

    def part(self, blocks: range) -> SettingDecisions:
        """Those of a space with some of the choice blocks and elastic layers only.

        Raises:
            ConfigError: when a setting reaches others, too.
        """
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
