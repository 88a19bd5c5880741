"""The rule of each layer: that of its block, unless it has no state."""

from __future__ import annotations

from naspipe.config.ids import LayerId
from naspipe.config.rules import (
    Exact,
    Follows,
    Frozen,
    Lag,
    PartlyFrozen,
    rule_of,
    untrained,
    with_stateless,
)


def test_layers_without_state_are_frozen_whatever_their_block_says():
    rules = with_stateless([Exact(), Lag(2), Exact(), Frozen()], [3, 1, 2, 2], {(0, 1), (1, 0)})
    assert rules == (PartlyFrozen(Exact(), frozenset({1})), Frozen(), Exact(), Frozen())
    assert [rule_of(rules, LayerId(0, 0, c)) for c in range(3)] == [Exact(), Frozen(), Exact()]
    assert rule_of(rules, LayerId(7, 1, 0)) == Frozen()
    assert rule_of(rules, LayerId(0, 2, 1)) == Exact()
    assert str(rules[0]) == "exact"


def test_nothing_is_known_of_no_layers():
    rules = [Exact(), Lag(1)]
    assert with_stateless(rules, [2, 1], ()) == tuple(rules)


def test_a_stream_that_is_not_trained_changes_only_what_follows():
    follows = PartlyFrozen(Follows(0, 1, 0), frozenset({0}))
    assert untrained(follows) == follows
    assert untrained(PartlyFrozen(Exact(), frozenset({0}))) == Frozen()
    assert untrained(Lag(3)) == Frozen()
