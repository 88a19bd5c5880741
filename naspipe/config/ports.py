"""The protocols through which behaviour plugs into spaces.

=================== ================================================================
:class:`Decisions`  :class:`~naspipe.nni.decisions.LabelDecisions`,
                    :class:`~naspipe.config.space.SettingDecisions`
:class:`Proof`      :class:`~naspipe.nni.proof.NniProof`
=================== ================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol


class Proof(Protocol):
    """Shows that the layers of a space compute the same as the layers that they replace."""

    def prove(self, batch: Mapping[str, Any]) -> Mapping[str, Any]:
        """Compare on a batch; return a manifest entry. Raise ConfigError if results differ."""


class Decisions(Protocol):
    """The decisions that samplers draw, if blocks do not choose independently.

    There are ``counts`` values of each decision, and ``choices`` turns one value per decision into
    one choice per choice block.
    """

    @property
    def counts(self) -> tuple[int, ...]: ...
    def choices(self, drawn: Sequence[int]) -> tuple[int, ...]: ...

    def choices_of(self, sample: Mapping[str, Any]) -> tuple[int, ...]:
        """Return choices from NNI's value of every label; raise ConfigError if one does not fit."""

    def drawn(self, choices: Sequence[int]) -> tuple[int, ...]:
        """Invert :meth:`choices`; raise a ConfigError if there is no inverse."""

    def decided(self) -> Sequence[Sequence[Mapping[str, Sequence[str]]]]:
        """Return the labels that determine each candidate of each choice block, with values.

        Labels that may have any value are omitted. Empty if the space describes this otherwise.
        """

    def extremes(self, size: Callable[[int, int], int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the choices of the largest and smallest subnet by ``size(block, candidate)``."""

    def part(self, blocks: range) -> Decisions:
        """Return the decisions of choice blocks; raise ConfigError if others are affected."""
