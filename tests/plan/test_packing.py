"""Which stage does which piece: against every way there is."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from naspipe.plan.joint_placements import NEAR, Link, pack


def peak(costs, dealt, stages):
    return max(sum(c for c, s in zip(costs, dealt, strict=True) if s == n) for n in range(stages))


def moved(links, dealt):
    return sum(size for a, b, size in links if dealt[a] != dealt[b])


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_nothing_is_better(data):
    stages = data.draw(st.integers(1, 3))
    costs = data.draw(st.lists(st.integers(1, 30), min_size=1, max_size=7))
    ends = st.integers(0, len(costs) - 1)
    links = data.draw(st.lists(st.builds(Link, ends, ends, st.integers(0, 9)), max_size=8))
    found = pack(costs, links, stages)
    ways = list(product(range(stages), repeat=len(costs)))
    least = min(peak(costs, way, stages) for way in ways)
    assert peak(costs, found, stages) <= least * (1 + NEAR)
    near = [way for way in ways if peak(costs, way, stages) <= least]
    assert moved(links, found) <= min(moved(links, way) for way in near)
    assert found == pack(costs, links, stages)


def test_stages_are_numbered_by_their_first_piece():
    assert pack([1, 5, 1, 5], [], 2)[0] == 0


@pytest.mark.parametrize("pieces", [26, 40])
def test_many_pieces_take_no_time(pieces):
    costs = [1.0 + (7 * n % 11) for n in range(pieces)]
    links = [Link(n, n + 1, 1) for n in range(pieces - 1)]
    found = pack(costs, links, 4)
    assert peak(costs, found, 4) <= 1.02 * sum(costs) / 4
