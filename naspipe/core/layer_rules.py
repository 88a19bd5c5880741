"""The rule of each layer: its block's, but a layer without state has nothing to order.

A layer without parameters and buffers (``Identity``, pooling, dropout) is the same in every
version. So nobody waits for one: whatever the rule of its block says, it is treated as frozen.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from naspipe.core.ids import LayerId
from naspipe.core.rules import Follows, Frozen, Lag, Rule

STATELESS = "no state"
"""What logs and reports say in place of a rule."""

_FROZEN = Frozen()


@dataclass(frozen=True, slots=True)
class PartlyFrozen:
    """Of a block some of whose candidates have no state; the others follow its rule."""

    rule: Rule
    frozen: frozenset[int]
    """The candidates without state: not none, and not all."""

    def __str__(self) -> str:
        return str(self.rule)


BlockRule = Rule | PartlyFrozen
"""What holds for the layers of one block."""


def rule_of(rules: Sequence[BlockRule], layer: LayerId) -> Rule:
    """How a layer's READs follow its WRITEs.

    Args:
        rules: of each block of the layer's chain.
        layer: which one.
    """
    rule = rules[layer.block]
    if isinstance(rule, PartlyFrozen):
        return _FROZEN if layer.candidate in rule.frozen else rule.rule
    return rule


def with_stateless(
    rules: Sequence[Rule], counts: Sequence[int], stateless: Collection[tuple[int, int]]
) -> tuple[BlockRule, ...]:
    """Rules as blocks name them, but for layers that have no state.

    Args:
        rules: of each block of a chain.
        counts: how many candidates each block has.
        stateless: block and candidate of the layers without parameters and buffers.
    """
    frozen: list[set[int]] = [set() for _ in rules]
    for block, candidate in stateless:
        frozen[block].add(candidate)
    return tuple(map(_of_block, rules, counts, frozen))


def _of_block(rule: Rule, count: int, frozen: set[int]) -> BlockRule:
    if not frozen or isinstance(rule, Frozen):
        return rule
    return PartlyFrozen(rule, frozenset(frozen)) if len(frozen) < count else _FROZEN


def rule_with_state(rule: BlockRule) -> Rule:
    """What holds for those layers of a block that have state."""
    return rule.rule if isinstance(rule, PartlyFrozen) else rule


def grown_up(rule: BlockRule) -> BlockRule:
    """The rule as it is once its lag has grown: what a stream flows by."""
    own = rule_with_state(rule)
    if not isinstance(own, Lag):
        return rule
    grown = replace(own, over=0)
    return replace(rule, rule=grown) if isinstance(rule, PartlyFrozen) else grown


def untrained(rule: BlockRule) -> BlockRule:
    """What holds for the layers of a block in a stream that is not trained."""
    return rule if isinstance(rule_with_state(rule), Follows) else _FROZEN
