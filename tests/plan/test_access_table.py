"""The compact log holds what it was given, and its numbers are those of the plain log."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from naspipe.config.ids import Access, AccessKind, LayerId
from naspipe.plan.simulated_log import AccessTable, summarize_table
from naspipe.store.metrics import summarize
from scripts.paper.costs import RandomCosts
from tests.plan.test_causal_order import run
from tests.strategies import moving_pipelines


def table_of(accesses):
    table = AccessTable()
    for access in accesses:
        table.append(access)
    return table


def test_rows_come_back_as_they_were():
    rows = [Access(LayerId(1, 2, 3), 4, kind, -1, 5, 2**60, 2**60 + 7, 11) for kind in AccessKind]
    table = table_of(rows)
    assert list(table) == rows and table[-1] == rows[-1] and table[:2] == rows[:2]
    assert list(table.of_stage(5)) == rows and list(table.of_stage(4)) == []
    assert table.column("kind").tolist() == [0, 1, 2]
    table.append(rows[0])
    assert len(table) == 4, "a column that is still held does not keep the table from growing"
    with pytest.raises(IndexError):
        table[4]


@settings(max_examples=100)
@given(moving_pipelines(), st.integers(0, 2**32), st.booleans())
def test_its_numbers_are_those_of_the_plain_log(pipeline, seed, stalls):
    rules, subnets, partitions = pipeline
    subnets = [s._replace(sequence_id=y) for y, s in enumerate(subnets * 2)]
    accesses = run(rules, subnets, partitions * 2, RandomCosts(seed))
    if stalls:
        accesses = [a._replace(stalled_ns=a.start_ns % 3 * 40) for a in accesses]
    stages = partitions[0].num_stages
    expected, found = summarize(accesses, stages), summarize_table(table_of(accesses), stages)
    for name, one, other in zip(expected._fields, expected, found, strict=True):
        assert math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9), name


def test_an_empty_log_has_numbers():
    assert summarize_table(AccessTable(), 2) == summarize([], 2)
