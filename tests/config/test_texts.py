"""Identities, tasks, partitions and rules: their text forms and what parses back."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from naspipe.config.errors import ConfigError
from naspipe.config.ids import INITIAL, Access, AccessKind, LayerId, Subnet
from naspipe.config.partition import Partition, make_partition
from naspipe.config.rules import Every, Exact, Frozen, Lag, Rule, parse_rule, steps_behind
from naspipe.engine.events import Task, TaskKind, parse_task

numbers = st.integers(0, 1 << 70)
forwards = st.builds(Task, numbers, numbers, st.just(TaskKind.FORWARD), numbers, st.just(0))
backwards = st.builds(
    Task, numbers, numbers, st.just(TaskKind.BACKWARD), numbers, st.integers(0, 99_999)
)
tasks = forwards | backwards


def test_text_forms() -> None:
    assert str(LayerId(0, 3, 1)) == "0:3.1"
    assert str(Task(0, 12, TaskKind.FORWARD, 3)) == "0.12F@3"
    assert str(Task(1, 2, TaskKind.BACKWARD, 0)) == "1.2B@0"
    assert str(Task(1, 2, TaskKind.BACKWARD, 0, 3)) == "1.2B3@0"
    assert str(Subnet(0, 7, (0, 2, 1))) == "0.7(0,2,1)"
    assert str(Partition((0, 25, 51))) == "0:25:51"
    access = Access(LayerId(0, 3, 1), 5, AccessKind.FORWARD, INITIAL, 2, 10, 20)
    assert str(access) == "0:3.1/5Fv-1@2"


@given(tasks)
def test_a_task_parses_back(task: Task) -> None:
    assert parse_task(str(task)) == task
    assert task.at(9) == parse_task(str(task).partition("@")[0] + "@9")


@pytest.mark.parametrize(
    "text",
    ["", "0.1W@1", "1F@1", "0.1.0F@1", "0.1F", "0.1F@-1", " 0.1F@1", "0.1F@1\n", "a.1F@1", "0x"],
)
def test_what_is_no_task(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_task(text)
    assert str(caught.value) == f"expected a task such as 0.12F@3, found {text!r}"


OWN = {"momentum": st.none() | st.floats(0, 0.999), "lr": st.floats(1e-9, 1e9)}
RULES = st.one_of(
    st.just(Exact()), st.just(Frozen()), st.builds(Lag, st.integers(0, 1 << 70)),
    st.builds(Lag, st.integers(0, 9), over=st.integers(9, 99), predicts=st.booleans(), **OWN),
    st.builds(Lag, st.integers(0, 9), predicts=st.booleans(), **OWN),
    st.builds(Every, st.integers(2, 99), **OWN),
)  # fmt: skip


@given(RULES)
def test_a_rule_parses_back(rule: Rule) -> None:
    assert parse_rule(str(rule)) == rule


@given(RULES, st.integers(0, 1000))
def test_what_steps_read_never_gets_older(rule: Rule, step: int) -> None:
    behind = steps_behind(rule) or 0
    assert rule.last_read(step) <= rule.last_read(step + 1) <= step
    assert isinstance(rule, Frozen) or rule.last_read(step) >= step - 1 - behind


def test_rules_are_told_apart() -> None:
    assert len({Exact(), Frozen(), Lag(0), Lag(1), Lag(1)}) == 4
    assert [str(rule) for rule in (Exact(), Frozen(), Lag(8))] == ["exact", "frozen", "lag(8)"]


@pytest.mark.parametrize(
    "text",
    [
        "", "Exact", "lag", "lag()", "lag(-1)", "lag(1.5)", "lag(8) ", "lag(0..8)", "lag(8,over=9)",
        "lag(8,lr)", "lag(8,lr=)", "lag(8,lr=1,lr=2)", "lag(8,predict=1)", "lag(8,rate=1)",
        "every(4,predict)", "every()", "every(4,momentum=1.2.3)",
    ],
)  # fmt: skip
def test_what_is_no_rule(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_rule(text)
    assert str(caught.value) == (
        f"unknown rule {text!r}: expected exact, frozen, lag(K) or every(M), as in lag(8) or "
        f"every(4,lr=2)"
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("lag(0..8,over=3)", "expected over=8 or more, as K grows by one a step at most"),
        ("lag(8,momentum=1.0)", "expected a momentum from 0 to below 1, found 1.0"),
        ("every(4,lr=0.0)", "expected lr to be a factor above 0, found 0.0"),
        ("every(1)", "expected 2 or more steps"),
    ],
)
def test_rules_that_cannot_be(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_rule(text)
    assert str(caught.value) == f"{text}: {said}"


def test_a_lag_is_not_negative() -> None:
    with pytest.raises(ConfigError, match=r"lag\(-1\): expected 0 or more subnets of lag"):
        Lag(-1)


def test_a_partition_by_hand() -> None:
    partition = make_partition((0, 2, 3, 7))
    assert (partition.num_stages, partition.num_blocks) == (3, 7)
    assert [list(partition.blocks(stage)) for stage in range(3)] == [[0, 1], [2], [3, 4, 5, 6]]
    assert [partition.stage_of(block) for block in range(7)] == [0, 0, 1, 2, 2, 2, 2]


@given(st.sets(st.integers(1, 60), min_size=1).map(lambda cuts: (0, *sorted(cuts))))
def test_every_block_has_the_stage_that_runs_it(bounds: tuple[int, ...]) -> None:
    partition = make_partition(bounds)
    blocks = [b for stage in range(partition.num_stages) for b in partition.blocks(stage)]
    assert blocks == list(range(bounds[-1]))
    assert all(
        partition.stage_of(block) == stage
        for stage in range(partition.num_stages)
        for block in partition.blocks(stage)
    )


@given(st.lists(st.integers(-1, 6), max_size=5).map(tuple))
def test_bounds_start_at_0_and_never_fall(bounds: tuple[int, ...]) -> None:
    is_good = len(bounds) > 1 and bounds[0] == 0 and bounds[-1] > 0
    is_good = is_good and all(a <= b for a, b in pairwise(bounds))
    if is_good:
        assert make_partition(bounds).bounds == bounds
        return
    with pytest.raises(ConfigError) as caught:
        make_partition(bounds)
    assert str(caught.value).startswith(f"partition {bounds}: expected bounds that start at 0")
