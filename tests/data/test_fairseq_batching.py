"""Batches as fairseq makes them, against expectations written by hand and recorded from fairseq."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from naspipe.config.errors import ConfigError
from naspipe.data.text import BatchPlanner, batch_ends, collate, sentence_order


def sizes_of(lengths: list[int], max_tokens: int, multiple: int = 1) -> list[int]:
    ends = batch_ends(np.array(lengths), max_tokens, multiple)
    return [stop - start for start, stop in pairwise([0, *ends])]


def test_filled_by_longest_times_sentences() -> None:
    # 3 4 4 5 are 4 x 5 = 20; with the 6 they would be 5 x 6 = 30
    assert sizes_of([3, 4, 4, 5, 6, 7, 9], 20) == [4, 2, 1]


@pytest.mark.parametrize(
    ("lengths", "max_tokens", "multiple", "expected"),
    [
        ([3, 4, 4, 5, 6, 7, 9], 20, 2, [4, 2]),
        ([2] * 11, 10, 4, [4, 4]),
        ([1, 1, 1, 1, 1, 9, 9, 9], 18, 4, [4, 2]),
        ([5, 1, 1, 7, 2, 2, 2, 8], 16, 3, [3, 2, 2]),
        ([4] * 7, 12, 2, [2, 2, 2]),
    ],
)
def test_answers_of_fairseq(
    lengths: list[int], max_tokens: int, multiple: int, expected: list[int]
) -> None:
    """Recorded from fairseq's own batch_by_size."""
    assert sizes_of(lengths, max_tokens, multiple) == expected


@given(
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=60),
    spare=st.integers(0, 80),
    multiple=st.integers(1, 5),
)
def test_batches_keep_the_limits(lengths: list[int], spare: int, multiple: int) -> None:
    max_tokens = max(lengths) + spare
    try:
        sizes = sizes_of(lengths, max_tokens, multiple)
    except ConfigError:
        assert len(lengths) % multiple
        return
    start = 0
    for size in sizes:
        assert size * max(lengths[start : start + size]) <= max_tokens
        assert size > 0
        start += size
    left_out = lengths[start:]
    assert len(left_out) * max(left_out, default=0) <= max_tokens
    assert not left_out or len(left_out) % multiple


def test_impossible_limits_say_what_to_set() -> None:
    with pytest.raises(ConfigError, match="set max_tokens to 9 or more"):
        sizes_of([3, 9], 8)
    with pytest.raises(ConfigError, match="at least 1"):
        sizes_of([3], 0)
    with pytest.raises(ConfigError, match="set required_multiple to 1"):
        sizes_of([3, 3], 100, 4)


def test_order_sorts_by_source_then_target_and_permutes_ties() -> None:
    source, target = np.array([2, 1, 2, 1, 2]), np.array([5, 9, 4, 3, 5])
    assert sentence_order(source, target, None).tolist() == [3, 1, 2, 0, 4]
    both = {tuple(sentence_order(source, target, seed).tolist()) for seed in range(20)}
    assert both == {(3, 1, 2, 0, 4), (3, 1, 2, 4, 0)}


def test_plan_is_numpys_own_permutation_and_shuffle() -> None:
    """Spelled out with the global generator, as fairseq does it."""
    rng = np.random.RandomState(5)
    source, target = rng.randint(1, 9, 50), rng.randint(1, 9, 50)
    state = np.random.get_state()
    np.random.seed(7 + 2)
    order = np.random.permutation(50)
    order = order[np.argsort(target[order], kind="mergesort")]
    order = order[np.argsort(source[order], kind="mergesort")]
    lengths = np.maximum(source, target)[order]
    expected = [part.tolist() for part in np.split(order, batch_ends(lengths, 30)[:-1])]
    np.random.seed(7 + 2)
    np.random.shuffle(expected)
    np.random.set_state(state)
    plan = BatchPlanner(source, target, 30).plan(7, 2)
    assert [batch.tolist() for batch in plan] == expected


def test_every_epoch_has_each_sentence_once() -> None:
    rng = np.random.RandomState(1)
    source, target = rng.randint(1, 12, 80), rng.randint(1, 12, 80)
    planner = BatchPlanner(source, target, 40)
    plans = [planner.plan(seed=3, epoch=epoch) for epoch in (1, 2)]
    for plan in plans:
        assert len(plan) == planner.num_batches
        assert sorted(np.concatenate(plan).tolist()) == list(range(80))
    assert [b.tolist() for b in plans[0]] != [b.tolist() for b in plans[1]]
    ordered = BatchPlanner(source, target, 40, shuffle=False)
    assert [b.tolist() for b in ordered.plan(1, 1)] == [b.tolist() for b in ordered.plan(2, 5)]


def test_large_and_negative_seeds_are_allowed() -> None:
    source = np.array([1, 1, 1])
    for seed in (-5, 1 << 70):
        assert len(BatchPlanner(source, source, 2).plan(seed, 1)) == 2


def test_collate_pads_source_left_and_target_right() -> None:
    sources = [np.array([5, 2]), np.array([6, 7, 8, 2]), np.array([9, 2])]
    targets = [np.array([10, 11, 12, 2]), np.array([13, 2]), np.array([2])]
    source, previous, target = collate(sources, targets)
    assert source.tolist() == [[6, 7, 8, 2], [1, 1, 5, 2], [1, 1, 9, 2]]
    assert target.tolist() == [[13, 2, 1, 1], [10, 11, 12, 2], [2, 1, 1, 1]]
    assert previous.tolist() == [[2, 13, 1, 1], [2, 10, 11, 12], [2, 1, 1, 1]]
