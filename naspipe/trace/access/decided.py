"""What the labels of a space's decisions say of its layers and subnets, as in ``op0=1``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from naspipe.config.errors import ConfigError
from naspipe.config.space import Space

_SHOWN = 12
"""Names in a message."""


class Decided:
    """Labels and values of candidates, where decisions have them.

    Args:
        stored: see :meth:`naspipe.config.ports.Decisions.decided`.

    Raises:
        AttributeError, TypeError: when that is something else.
    """

    def __init__(self, stored: Sequence[Sequence[Mapping[str, Sequence[str]]]] = ()) -> None:
        self._blocks = [
            [
                {_plain(label): tuple(map(_plain, values)) for label, values in each.items()}
                for each in candidates
            ]
            for candidates in stored
        ]

    def of_layer(self, block: int, candidate: int) -> str:
        """What decides a candidate of a choice block; empty where that is not known.

        Labels with one value say enough; without them, ``depth=1|2``.
        """
        found = self._of(block, candidate)
        single = {label: values for label, values in found.items() if len(values) == 1}
        return _text(single or found)

    def of_subnet(self, choices: Sequence[int]) -> str:
        """The values that all its layers together leave to each label."""
        return _text(self.values_of(choices))

    def values_of(self, choices: Sequence[int]) -> dict[str, tuple[str, ...]]:
        """By label, the values that all layers of a subnet together leave."""
        left: dict[str, tuple[str, ...]] = {}
        for block, choice in enumerate(choices):
            for label, values in self._of(block, choice).items():
                left[label] = tuple(each for each in left.get(label, values) if each in values)
        return left

    def find(self, text: str) -> tuple[int, int]:
        """The choice block and the candidate that ``op0=1`` decides, or ``kernel=3 width=8``.

        Raises:
            ConfigError: when there is none, or when there are several.
        """
        wanted = [each.rpartition("=") for each in re.split(r"\s+(?=\S+=)", text.strip())]
        found = {
            (block, candidate): values
            for block, candidates in enumerate(self._blocks)
            for candidate, values in enumerate(candidates)
        }
        for given, _, value in wanted:
            label = _plain(given)
            having = {place: each for place, each in found.items() if label in each}
            if not having:
                known = dict.fromkeys(label for each in found.values() for label in each)
                raise ConfigError(
                    f"no label {label!r:.80} decides a layer: expected "
                    f"{_listed(known) or 'BLOCK.CANDIDATE, as the run recorded no labels'}"
                )
            said = {place: _text({label: each[label]}) for place, each in having.items()}
            found = {
                place: found[place] for place in said if said[place] == f"{label}={_plain(value)}"
            }
            if not found:
                raise ConfigError(
                    f"{label}={_plain(value):.80} decides no layer: expected "
                    f"{_listed(dict.fromkeys(said.values()))}"
                )
        if len(found) > 1:
            names = _listed(f"{block}.{candidate}" for block, candidate in found)
            raise ConfigError(f"{text!r:.80} is several layers: expected one of {names}")
        return next(iter(found))

    def _of(self, block: int, candidate: int) -> Mapping[str, Sequence[str]]:
        if not (0 <= block < len(self._blocks) and 0 <= candidate < len(self._blocks[block])):
            return {}
        return self._blocks[block][candidate]


def decided_in(space: Space) -> Sequence[Sequence[Mapping[str, Sequence[str]]]]:
    """A manifest's ``decided``: empty where a space has no labels."""
    return space.decisions.decided() if space.decisions is not None else ()


def _text(values: Mapping[str, Sequence[str]]) -> str:
    return " ".join(f"{label}={'|'.join(each)}" for label, each in values.items())


def _plain(text: str) -> str:
    return re.sub(r"\s", "", text)


def _listed(names: Iterable[str]) -> str:
    known = list(names)
    return ", ".join(known[:_SHOWN]) + (", ..." if len(known) > _SHOWN else "")
