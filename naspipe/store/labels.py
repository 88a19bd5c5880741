"""The names of a recorded run's layers and subnets, from its manifest alone.

This module writes the manifest entries that describe a space (``space``, ``stateless`` and
``decided``), and reads them without the space's code.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from naspipe.config.blocks import LOSS, Elastic, LossBlock, Shared, texts_of
from naspipe.config.errors import ConfigError
from naspipe.config.ids import FIRST_STREAM, LayerId, SequenceId, StreamId, Subnet
from naspipe.config.rules import (
    STATELESS,
    BlockRule,
    Exact,
    Rule,
    parse_rule,
    rule_of,
    rule_with_state,
    with_stateless,
)
from naspipe.config.space import Space

_SHOWN = 12
"""Maximum number of names in a message."""


class Decided:
    """Labels and values of candidates, if the space's decisions have labels.

    Args:
        stored: see :meth:`naspipe.config.ports.Decisions.decided`.

    Raises:
        AttributeError, TypeError: if ``stored`` has another form.
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
        """Return the labels that decide a candidate of a choice block; empty if unknown.

        Only labels with one value are listed; if there are none, the text has the form
        ``depth=1|2``.
        """
        found = self._of(block, candidate)
        single = {label: values for label, values in found.items() if len(values) == 1}
        return _text(single or found)

    def of_subnet(self, choices: Sequence[int]) -> str:
        """Return :meth:`values_of` as text."""
        return _text(self.values_of(choices))

    def values_of(self, choices: Sequence[int]) -> dict[str, tuple[str, ...]]:
        """Return the values of each label that agree with all layers of a subnet."""
        left: dict[str, tuple[str, ...]] = {}
        for block, choice in enumerate(choices):
            for label, values in self._of(block, choice).items():
                left[label] = tuple(each for each in left.get(label, values) if each in values)
        return left

    def find(self, text: str) -> tuple[int, int]:
        """Return the choice block and the candidate for ``op0=1`` or ``kernel=3 width=8``.

        Raises:
            ConfigError: unless exactly one candidate matches.
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
    """Return the manifest entry ``decided``; empty if the space has no labels."""
    return space.decisions.decided() if space.decisions is not None else ()


def _text(values: Mapping[str, Sequence[str]]) -> str:
    return " ".join(f"{label}={'|'.join(each)}" for label, each in values.items())


def _plain(text: str) -> str:
    return re.sub(r"\s", "", text)


def _listed(names: Iterable[str]) -> str:
    known = list(names)
    return ", ".join(known[:_SHOWN]) + (", ..." if len(known) > _SHOWN else "")


def described(space: Space, stateless: Collection[tuple[int, int]]) -> dict[str, Any]:
    """Return the manifest entries that :class:`SpaceLabels` reads.

    ``stateless`` lists block and candidate of the layers without state.
    """
    labels = [space.label(*place) for place in sorted(stateless)]
    return {
        "space": describe_space(space),
        "stateless": labels,
        "decided": [list(each) for each in decided_in(space)],
    }


def describe_space(space: Space) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": space.name,
        "labels": list(space.labels),
        "shared": [isinstance(block, Shared) for block in space.blocks],
        "rules": [str(rule) for rule in space.rules],
        "candidates": [len(block.candidates) for block in space.blocks],
    }
    if isinstance(space.blocks[-1], LossBlock):
        found["loss_layer"] = LOSS
    if space.is_elastic:
        found["elastic"] = {
            block.name: {name: list(values) for name, values in block.settings.items()}
            for block in space.blocks
            if isinstance(block, Elastic)
        }
        sliced = [b.name for b in space.blocks if isinstance(b, Elastic) and b.step == "slice"]
        found |= {"sliced": sliced} if sliced else {}
    return found


def settings_of(described: Mapping[str, Any]) -> list[str]:
    """Return each elastic layer of a manifest's ``space`` with its settings."""
    sliced = described.get("sliced", ())
    return [
        f"{name} {settings}{', stepped by the slice' * (name in sliced)}"
        for name, settings in described.get("elastic", {}).items()
    ]


class SpaceLabels:
    """Labels, rules and candidates of the blocks of a chain, from a manifest's entries.

    Args:
        space: the manifest's ``space``.
        stateless: labels of the layers without state.
        decided: labels that decide each candidate of each choice block, if known.

    Raises:
        ConfigError: if the manifest does not describe a space.
    """

    def __init__(
        self, space: Mapping[str, Any], stateless: Iterable[str] = (), decided: Any = ()
    ) -> None:
        try:
            self.name = str(space["name"])
            self.labels = tuple(map(str, space["labels"]))
            self.is_shared = tuple(map(bool, space["shared"]))
            rules = tuple(map(parse_rule, space["rules"]))
            self.candidates = tuple(map(int, space["candidates"]))
            elastic = {
                str(name): texts_of(each.values())
                for name, each in space.get("elastic", {}).items()
            }
            self.decided = Decided(decided)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"the manifest describes no space: {error!r}") from error
        if len({len(self.labels), len(self.is_shared), len(rules), len(self.candidates)}) > 1:
            raise ConfigError(f"space {self.name}: the manifest's lists differ in length")
        self._positions = {label: position for position, label in enumerate(self.labels)}
        self._texts = {n: elastic[name] for name, n in self._positions.items() if name in elastic}
        """The settings of each elastic layer, by its position."""
        self.stateless = frozenset(map(str, stateless))
        layers = map(self.layer, self.stateless)
        places = {(layer.block, layer.candidate) for layer in layers}
        self.rules: tuple[BlockRule, ...] = with_stateless(rules, self.candidates, places)

    def __len__(self) -> int:
        return len(self.labels)

    def label(self, layer: LayerId) -> str:
        """Return ``3.1`` or a shared layer's name; in stream 1 ``1:3.1``, and so on."""
        stream, block, candidate = layer
        if not 0 <= block < len(self):
            return str(layer)
        name = self.labels[block]
        name = name if self._is_named(block) else f"{name}.{candidate}"
        return f"{stream}:{name}" if stream else name

    def decision(self, layer: LayerId) -> str:
        """Return the labels of a layer's decisions, such as ``op0=1``; empty without labels."""
        if not 0 <= layer.block < len(self) or self.is_shared[layer.block]:
            return ""
        return self.decided.of_layer(self._number(layer.block), layer.candidate)

    def full_label(self, layer: LayerId) -> str:
        """Return :meth:`label`, followed by :meth:`decision`."""
        return f"{self.label(layer)} {self.decision(layer)}".strip()

    @property
    def stays(self) -> tuple[bool, ...]:
        """See :attr:`naspipe.config.space.Space.stays`."""
        rules = map(rule_with_state, self.rules)
        return tuple(
            self.is_shared[block] or (block in self._texts and not isinstance(rule, Exact))
            for block, rule in enumerate(rules)
        )

    @property
    def has_settings(self) -> bool:
        """Return True if a layer is elastic."""
        return bool(self._texts)

    @property
    def options(self) -> tuple[int, ...]:
        """Number of options of each block with a choice."""
        return tuple(
            len(self._texts.get(block, ())) or count
            for block, count in enumerate(self.candidates)
            if not self.is_shared[block]
        )

    def subnet(self, number: int, choices: Iterable[int]) -> Subnet:
        """Return the subnet of these choices, one per choice block and elastic layer."""
        left = iter(choices)
        chain = tuple(0 if is_shared else next(left) for is_shared in self.is_shared)
        texts = self._texts
        used = tuple(0 if block in texts else option for block, option in enumerate(chain))
        return Subnet(FIRST_STREAM, SequenceId(number), chain, used if texts else ())

    def settings(self, layer: LayerId, stream: Sequence[Sequence[int]]) -> Callable[[int], str]:
        """Return a function from a subnet's number to the layer's setting, as in ``[512]``, or "".

        ``stream`` lists the choices of every subnet.
        """
        texts = self._texts.get(layer.block)
        if texts is None:
            return lambda _: ""
        place = self._number(layer.block)
        return lambda number: f"[{texts[stream[number][place]]}]"

    def _number(self, position: int) -> int:
        """Return the number of blocks with a choice before this one."""
        return sum(not shared for shared in self.is_shared[:position])

    def _is_named(self, block: int) -> bool:
        return self.is_shared[block] or block in self._texts

    def is_stateless(self, layer: LayerId) -> bool:
        """Return True if a layer has no versions."""
        return self.label(layer._replace(stream=FIRST_STREAM)) in self.stateless

    def rule(self, layer: LayerId) -> Rule | None:
        """Return the rule of a layer; None if the space has no such layer."""
        return rule_of(self.rules, layer) if 0 <= layer.block < len(self) else None

    def is_exact(self, layer: LayerId) -> bool:
        """Return True if the layer's rule is exact: the order of all accesses is relevant."""
        return isinstance(self.rule(layer), Exact)

    def rule_text(self, layer: LayerId) -> str:
        """Return the rule as shown in logs: ``exact``, ``lag(2)``, or that it has no state."""
        return STATELESS if self.is_stateless(layer) else str(self.rule(layer) or "?")

    def layer(self, label: str) -> LayerId:
        """Return the layer named ``3.1``, ``head``, ``1:3.1`` or ``op0=1``; ConfigError if none."""
        if "=" in label:
            number, option = self.decided.find(label)
            chooses = [place for place, shared in enumerate(self.is_shared) if not shared]
            return LayerId(FIRST_STREAM, chooses[number], option)
        match = re.fullmatch(r"(?:([0-9]{1,9}):)?([^.:]+)(?:\.([0-9]{1,9}))?", label)
        position = self._positions.get(match.group(2)) if match else None
        if match and position is not None:
            stream, candidate = StreamId(int(match.group(1) or 0)), match.group(3)
            if self._is_named(position):
                if candidate is None:
                    return LayerId(stream, position, 0)
            elif candidate is not None and int(candidate) < self.candidates[position]:
                return LayerId(stream, position, int(candidate))
        shared = [name for block, name in enumerate(self.labels) if self._is_named(block)]
        blocks = len(self) - len(shared)
        choices = [f"BLOCK.CANDIDATE with a block below {blocks}"] if blocks else []
        choices += [f"one of {', '.join(shared)}"] if shared else []
        raise ConfigError(
            f"space {self.name} has no layer {label!r}: expected {' or '.join(choices)}"
        )
