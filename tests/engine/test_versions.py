"""The version book: tickets by hand, reference counts that never leak, and a brute-force policy."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from naspipe.config.errors import InvariantError
from naspipe.config.ids import INITIAL, LayerId, Subnet
from naspipe.config.rules import Every, Exact, Frozen, Lag
from naspipe.engine.policies import CausalPolicy
from naspipe.engine.versions import Ticket, VersionBook
from tests.strategies import pipelines, rules_of_shared, sees

LAYER = LayerId(0, 0, 0)


def book_of(*rules):
    return VersionBook([rules, rules], CausalPolicy())  # two streams


def admit(book, *choices):
    """Subnets of one block, in order; returns (reads, base) of each ticket."""
    first = book._next.get(0, 0)
    return [
        book.admit(Subnet(0, number, (choice,)), [0])[0]
        for number, choice in enumerate(choices, first)
    ]


def shown(tickets):
    return [(ticket.reads, ticket.base, ticket.is_writer) for ticket in tickets]


def test_exact_tickets_follow_the_previous_user():
    book = book_of(Exact())
    tickets = admit(book, 0, 1, 0, 0, 1)
    assert shown(tickets) == [
        (INITIAL, INITIAL, True),
        (INITIAL, INITIAL, True),
        (0, 0, True),
        (2, 2, True),
        (1, 1, True),
    ]
    assert [ticket.layer.candidate for ticket in tickets] == [0, 1, 0, 0, 1]


def test_frozen_tickets_read_the_initial_version_for_good():
    book = book_of(Frozen())
    assert shown(admit(book, 0, 0, 0)) == [(INITIAL, INITIAL, False)] * 3
    assert book.exists(LAYER, INITIAL) and book.keeps(LAYER, INITIAL)
    assert [book.release(LAYER, INITIAL) for _ in range(3)] == [[], [], []]
    assert book.keeps(LAYER, INITIAL), "a later subnet will read it"


def test_lag_tickets_read_behind_and_write_in_order():
    book = book_of(Lag(2))
    assert shown(admit(book, *[0] * 6)) == [
        (INITIAL, INITIAL, True),
        (INITIAL, 0, True),
        (INITIAL, 1, True),
        (0, 2, True),
        (1, 3, True),
        (2, 4, True),
    ]


def test_lag_counts_sequence_ids_not_users():
    book = book_of(Lag(2))
    tickets = admit(book, 0, 1, 1, 1, 0, 1, 0)
    assert [t.reads for t in tickets if t.layer.candidate == 0] == [INITIAL, 0, 0]
    assert [t.reads for t in tickets if t.layer.candidate == 1] == [INITIAL, INITIAL, INITIAL, 2]


def test_lag_0_is_exact():
    choices = [0, 1, 0, 0, 1, 1, 0]
    assert shown(admit(book_of(Lag(0)), *choices)) == shown(admit(book_of(Exact()), *choices))


def test_the_life_of_exact_versions():
    book = book_of(Exact())
    first, second = admit(book, 0, 0)
    assert book.exists(LAYER, INITIAL) and not book.exists(LAYER, 0)
    assert book.release(LAYER, INITIAL) == []
    assert book.newest(LAYER) == INITIAL
    assert not book.keeps(LAYER, INITIAL), "its WRITE may be made in place"
    assert book.write(LAYER, first, 0) == [INITIAL]
    assert book.exists(LAYER, 0) and not book.exists(LAYER, INITIAL)
    assert book.keeps(LAYER, 0), "subnet 1 has yet to read it"
    assert book.release(LAYER, 0) == []
    assert not book.keeps(LAYER, 0)
    assert book.write(LAYER, second, 1) == [0]
    assert book.keeps(LAYER, 1), "a subnet not yet admitted will ask for it"


def test_the_life_of_lagging_versions():
    book = book_of(Lag(1))
    tickets = admit(book, 0, 0, 0, 0)  # they read -1, -1, 0, 1
    assert book.release(LAYER, INITIAL) == []
    assert book.keeps(LAYER, INITIAL), "subnet 1 reads it too"
    assert book.write(LAYER, tickets[0], 0) == []
    assert book.release(LAYER, INITIAL) == [INITIAL]
    assert book.keeps(LAYER, 0)
    assert book.write(LAYER, tickets[1], 1) == []
    assert book.release(LAYER, 0) == [0]
    assert book.write(LAYER, tickets[2], 2) == []
    assert book.release(LAYER, 1) == [1], "subnet 4 will ask for 2"
    assert book.keeps(LAYER, 2)
    assert book.write(LAYER, tickets[3], 3) == []
    assert book.exists(LAYER, 2) and book.exists(LAYER, 3)


def test_only_the_blocks_of_the_stage_get_tickets():
    book = book_of(Exact(), Frozen(), Exact())
    tickets = book.admit(Subnet(0, 0, (0, 0, 2)), range(1, 3))
    assert tickets == {
        1: Ticket(LayerId(0, 1, 0), INITIAL, INITIAL, False),
        2: Ticket(LayerId(0, 2, 2), INITIAL, INITIAL, True),
    }


@pytest.mark.parametrize(("sequence_id", "expected"), [(1, 2), (3, 2), (0, 2)])
def test_admission_out_of_order(sequence_id, expected):
    book = book_of(Exact())
    admit(book, 0, 0)
    with pytest.raises(InvariantError) as caught:
        book.admit(Subnet(0, sequence_id, (0,)), [0])
    assert str(caught.value) == (
        f"subnet 0.{sequence_id} admitted out of order: expected sequence ID {expected}"
    )


def test_streams_count_and_write_apart():
    book = book_of(Exact())
    admit(book, 0, 0)
    ticket = book.admit(Subnet(1, 0, (0,)), [0])[0]
    assert ticket == Ticket(LayerId(1, 0, 0), INITIAL, INITIAL, True)
    assert admit(book, 0)[0].reads == 1
    with pytest.raises(InvariantError, match=r"subnet 1\.2 .*expected sequence ID 1"):
        book.admit(Subnet(1, 2, (0,)), [0])


def test_a_write_on_another_version():
    book = book_of(Lag(4))
    tickets = admit(book, 0, 0, 0)
    for wrong in (tickets[1], tickets[2]):
        with pytest.raises(InvariantError, match=r"was to follow version .*, found version -1"):
            book.write(LAYER, wrong, 1)
    book.write(LAYER, tickets[0], 0)
    with pytest.raises(InvariantError) as caught:
        book.write(LAYER, tickets[0], 0)
    assert str(caught.value) == ("layer 0:0.0: WRITE 0 was to follow version -1, found version 0")


def test_a_version_released_more_than_read():
    book = book_of(Exact())
    admit(book, 0)
    book.release(LAYER, INITIAL)
    for version in (INITIAL, 0, 7):
        with pytest.raises(InvariantError, match=f"version {version} released more than read"):
            book.release(LAYER, version)


def definition(rule, earlier, reader):
    """What the plain loop would read, said as slowly as possible."""
    return max((user for user in earlier if sees(rule, user, reader)), default=INITIAL)


@settings(max_examples=300)
@given(rules_of_shared, st.sets(st.integers(0, 20)), st.integers(0, 4))
def test_the_policy_is_its_definition(rule, users, gap):
    earlier = sorted(users)
    reader = (earlier[-1] + 1 if earlier else 0) + gap
    promised = [INITIAL, *earlier] if CausalPolicy().is_writer(rule) else [INITIAL]
    found = CausalPolicy().version_to_read(rule, promised, reader)
    assert found == definition(rule, users, reader)


@given(rules_of_shared, st.lists(st.integers(0, 2), max_size=25))
def test_tickets_are_the_definition(rule, choices):
    """Also after the book has forgotten the users that nobody can ask for any more."""
    for number, ticket in enumerate(admit(book_of(rule), *choices)):
        earlier = [y for y in range(number) if choices[y] == choices[number]]
        assert ticket.reads == definition(rule, earlier, number)
        if ticket.is_writer:
            assert ticket.base == max(earlier, default=INITIAL)


def play(book, subnets, draw):
    """Admit, release and write in any order that the rules allow; yields after each step."""
    waiting, reading, writing = list(subnets), [], []
    while waiting or reading or writing:
        clear = [t for t in reading if book.exists(t[0].layer, t[0].reads)]
        ready = [t for t in writing if book.newest(t[0].layer) == t[0].base]
        what = draw.choice(["admit"] * bool(waiting) + clear + ready)
        if what == "admit":
            subnet = waiting.pop(0)
            tickets = book.admit(subnet, range(len(subnet.chain)))
            reading += [(ticket, subnet.sequence_id) for ticket in tickets.values()]
        elif what in reading:
            reading.remove(what)
            book.release(what[0].layer, what[0].reads)
            writing += [what] * what[0].is_writer
        else:
            writing.remove(what)
            book.write(what[0].layer, what[0], what[1])
        yield reading


@settings(max_examples=200)
@given(pipelines(max_subnets=8, max_blocks=3), st.integers(0, 1 << 32))
def test_references_never_leak(pipeline, seed):
    """No version that an admitted or a later subnet reads is gone; at the end nothing else is."""
    rules, subnets, _ = pipeline
    book = book_of(*rules)
    for reading in play(book, subnets, random.Random(seed)):
        for ticket, _ in reading:
            state = book._layers[ticket.layer]
            assert ticket.reads in state.existing or ticket.reads > state.newest
    for layer, state in book._layers.items():
        rule = rules[layer.block]
        users = [s.sequence_id for s in subnets if s.layer(layer.block) == layer]
        later = range(len(subnets), len(subnets) + 8)
        needed = {definition(rule, users, reader) for reader in later}
        newest = INITIAL if isinstance(rule, Frozen) else max(users)
        assert state.readers == {}
        assert state.newest == newest
        assert state.existing == needed | {newest}
        assert needed | {newest} <= set(state.users)
        assert isinstance(rule, Every) or set(state.users) == needed
