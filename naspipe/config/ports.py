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
    """Shows that the layers of a space compute what the layers that they replace would."""

    def prove(self, batch: Mapping[str, Any]) -> Mapping[str, Any]:
        """Compare on a batch; returns what was compared, for the manifest. Raises ConfigError if
        not equal.
        """


class Decisions(Protocol):
    """What samplers draw, if blocks do not choose independently.

    There are ``counts`` values of each decision, and ``choices`` turns one value per decision into
    one choice per choice block.
    """

    @property
    def counts(self) -> tuple[int, ...]: ...
    def choices(self, drawn: Sequence[int]) -> tuple[int, ...]: ...

    def choices_of(self, sample: Mapping[str, Any]) -> tuple[int, ...]:
        """Choices from the value of every label, as NNI writes it; raises ConfigError if one does
        not fit.
        """

    def drawn(self, choices: Sequence[int]) -> tuple[int, ...]:
        """The inverse of :meth:`choices`; raises ConfigError if there is none."""

    def decided(self) -> Sequence[Sequence[Mapping[str, Sequence[str]]]]:
        """For each candidate of each choice block: the labels that determine it, and their values.

        Labels of which any value will do are omitted. Empty if the space describes this otherwise.
        """

    def extremes(self, size: Callable[[int, int], int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Choices of the largest and of the smallest subnet; ``size(block, candidate)`` is a
        size.
        """

    def part(self, blocks: range) -> Decisions:
        """The decisions of some choice blocks; raises ConfigError if one affects other blocks,
        too.
        """
