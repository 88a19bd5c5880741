"""The small protocols through which behaviour plugs into spaces.

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
    """Shows that a space's layers compute what they stand for."""

    def prove(self, batch: Mapping[str, Any]) -> Mapping[str, Any]:
        """Show it on a batch, once; returns what was looked at, for the run's manifest.

        Raises:
            ConfigError: when it is not so.
        """
        ...


class Decisions(Protocol):
    """What subnets are drawn over, where blocks do not choose each on its own."""

    @property
    def counts(self) -> tuple[int, ...]:
        """The number of values of each decision."""
        ...

    def choices(self, drawn: Sequence[int]) -> tuple[int, ...]:
        """One choice per choice block, from one value per decision."""
        ...

    def choices_of(self, sample: Mapping[str, Any]) -> tuple[int, ...]:
        """One choice per choice block, from the value of every label, as NNI writes it.

        Raises:
            ConfigError: when a label is missing, or has a value that it does not allow.
        """
        ...

    def drawn(self, choices: Sequence[int]) -> tuple[int, ...]:
        """What :meth:`choices` makes these choices of.

        Raises:
            ConfigError: when nothing does.
        """
        ...

    def decided(self) -> Sequence[Sequence[Mapping[str, Sequence[str]]]]:
        """Of each choice block, of each candidate: the labels that decide it, and their values.

        A label of which any value goes is left out. Empty where the space says it in another way.
        """
        ...

    def extremes(self, size: Callable[[int, int], int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The choices of the largest subnet, and of the smallest.

        ``size`` is that of a choice block, by its number, and a candidate.

        Raises:
            ConfigError: when there is no order.
        """
        ...

    def part(self, blocks: range) -> Decisions:
        """Those of a space with some of the choice blocks only.

        Raises:
            ConfigError: when one of them reaches other blocks, too.
        """
        ...
