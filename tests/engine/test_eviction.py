"""Victims: unmentioned and least recently used first, then the furthest next use."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from naspipe.config.ids import LayerId
from naspipe.engine.ledger import Candidate, choose_victims, eviction_order

A, B, C, D = (LayerId(0, 0, candidate) for candidate in range(4))


def rows(*triples):
    return [Candidate(*triple) for triple in triples]


def test_the_order_by_hand():
    candidates = rows((A, 5, 9), (B, 5, 3), (C, 5, 7), (D, 5, 8))
    assert [row.layer for row in eviction_order(candidates, {A: 0, B: 4})] == [C, D, B, A]


def test_ties_go_by_layer():
    candidates = rows((B, 5, 3), (A, 5, 3))
    assert [row.layer for row in eviction_order(candidates, {})] == [A, B]


def test_as_many_as_needed():
    candidates = rows((A, 5, 1), (B, 5, 2), (C, 5, 3))
    assert choose_victims(candidates, {A: 2, B: 1}, 4) == [C]
    assert choose_victims(candidates, {A: 2, B: 1}, 6) == [C, A]
    assert choose_victims(candidates, {A: 2, B: 1}, 15) == [C, A, B]
    assert choose_victims(candidates, {}, 16) == []


def test_what_a_larger_one_makes_needless_is_spared():
    candidates = rows((A, 2, 1), (B, 3, 2), (C, 9, 3))
    assert choose_victims(candidates, {}, 8) == [C]
    assert choose_victims(candidates, {}, 11) == [A, C], "of the two the sooner used is spared"


candidate_lists = st.lists(
    st.builds(Candidate, st.sampled_from([A, B, C, D]), st.integers(1, 9), st.integers(0, 3)),
    unique_by=lambda row: row.layer,
)
places = st.dictionaries(st.sampled_from([A, B, C, D]), st.integers(0, 9))


@given(candidate_lists, places, st.integers(1, 40))
def test_enough_and_no_more(candidates, next_uses, needed):
    victims = choose_victims(candidates, next_uses, needed)
    sizes = {row.layer: row.size_bytes for row in candidates}
    freed = sum(sizes[layer] for layer in victims)
    if sum(sizes.values()) < needed:
        assert victims == []
    else:
        assert freed >= needed
        assert all(freed - sizes[layer] < needed for layer in victims), "each one is needed"
    order = [row.layer for row in eviction_order(candidates, next_uses)]
    assert victims == [layer for layer in order if layer in victims]
    assert order == [row.layer for row in eviction_order(candidates[::-1], next_uses)]
