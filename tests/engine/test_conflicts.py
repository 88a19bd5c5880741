"""Who waits for whom on other stages, against the rule told in one line."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from naspipe.config.ids import Subnet
from naspipe.config.rules import Exact, Frozen, Lag
from naspipe.engine.predictor import Conflicts

HERE = range(1, 2)
EXACT = [Exact()] * 3


def conflicts(*chains, rules=EXACT):
    """Three blocks, one on each stage; seen from the middle one."""
    result = Conflicts([rules, rules])
    for number, chain in enumerate(chains):
        result.admit(Subnet(0, number, chain), HERE)
    return result


def test_by_hand():
    seen = conflicts((0, 0, 0), (0, 0, 1), (1, 0, 0), (2, 0, 2))
    assert [seen.before.is_waiting((0, y)) for y in range(4)] == [False, True, False, False]
    assert [seen.behind.is_waiting((0, y)) for y in range(4)] == [False, False, True, False]
    seen.come_back(0, 0)
    assert not seen.behind.is_waiting((0, 2)), "the stage behind has written what 2 reads"
    assert seen.before.is_waiting((0, 1)), "the stage before has not"
    seen.retire(0, 0)
    assert not seen.before.is_waiting((0, 1))


def test_only_the_user_before_counts_and_only_while_it_is_under_way():
    seen = conflicts((0, 0, 0), (1, 0, 0), (2, 0, 0))
    seen.come_back(0, 0)
    assert not seen.behind.is_waiting((0, 1)) and seen.behind.is_waiting((0, 2))
    seen.retire(0, 0)
    seen.retire(0, 1)
    seen.admit(Subnet(0, 3, (1, 0, 0)), HERE)
    assert not seen.before.is_waiting((0, 3)), "1 is gone"
    assert seen.behind.is_waiting((0, 3)), "2 is not"


def test_lagging_and_frozen_layers_hold_nobody_up():
    seen = conflicts((0, 0, 0), (0, 0, 0), rules=(Lag(8), Exact(), Frozen()))
    assert not seen.before.is_waiting((0, 1)) and not seen.behind.is_waiting((0, 1))


def test_streams_are_apart():
    seen = conflicts((0, 0, 0))
    seen.admit(Subnet(1, 0, (0, 0, 0)), HERE)
    seen.admit(Subnet(1, 1, (0, 0, 0)), HERE)
    assert (
        seen.before.is_waiting((1, 1))
        and not seen.before.is_waiting((1, 0))
        and not seen.before.is_waiting((0, 0))
    )


CHAINS = st.lists(st.tuples(*[st.integers(0, 2)] * 4), min_size=1, max_size=12)
STEPS = st.lists(st.tuples(st.booleans(), st.integers(0, 11)), max_size=20)


@given(CHAINS, STEPS, st.integers(0, 3), st.integers(1, 4))
def test_as_the_definition_has_it(chains, steps, first, stop):
    """A step waits where the last user before it of any of its layers is not done."""
    here = range(first, max(first + 1, stop))
    seen = Conflicts([[Exact()] * 4] * 2)
    for number, chain in enumerate(chains):
        seen.admit(Subnet(0, number, chain), here)
    returned, retired = set(), set()
    for retires, number in steps:
        if number < len(chains):
            returned.add(number)
            (seen.retire if retires else seen.come_back)(0, number)
            retired |= {number} if retires else set()

    def waits(number, blocks, done):
        users = (
            max((y for y in range(number) if chains[y][b] == chains[number][b]), default=None)
            for b in blocks
        )
        return any(user is not None and user not in done for user in users)

    for number in range(len(chains)):
        assert seen.before.is_waiting((0, number)) == waits(number, range(here.start), retired)
        assert seen.behind.is_waiting((0, number)) == waits(number, range(here.stop, 4), returned)
