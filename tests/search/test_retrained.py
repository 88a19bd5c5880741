"""Which subnets are retrained, what is written of them, and how far they confirm a ranking."""

from __future__ import annotations

import math

import pytest
from scipy.stats import kendalltau

from naspipe.config.errors import LogError
from naspipe.search.retrained import (
    Retrained,
    Terms,
    append_retrained,
    chosen,
    confidence,
    newest_alike,
    read_retrained,
)
from naspipe.search.scores import Scores
from naspipe.search.search_directory import Candidate, Search
from naspipe.search.strategies import Cost

TERMS = Terms(500, 1, "8 held-out batches")
NAN = math.nan


def searched(losses, score="loss", path=None):
    """A search whose subnets have these losses, and 1 - loss as top-1."""
    candidates = [
        Candidate(number, (number,), Scores(loss, 1 - loss, NAN), Cost(1.0, 1.0, 1.0))
        for number, loss in enumerate(losses)
    ]
    return Search(path, {"definition": {"score": score}}, tuple(candidates))


def alone(*pairs, terms=TERMS):
    """Subnets and what they reached."""
    return [
        Retrained(subnet, terms, Scores(loss, 1 - loss, NAN), f"alone/subnet-{subnet}")
        for subnet, loss in pairs
    ]


@pytest.mark.parametrize(
    ("best", "others", "expected"),
    [
        (3, 0, [0, 1, 2]), (0, 3, [2, 6, 9]), (2, 4, [0, 1, 3, 5, 7, 9]), (1, 1, [0, 9]),
        (10, 5, list(range(10))), (20, 5, list(range(10))), (9, 5, list(range(10))),
    ],
)  # fmt: skip
def test_the_best_and_others_down_to_the_worst(best, others, expected):
    search = searched([n / 10 for n in range(10)])
    assert [each.sequence_id for each in chosen(search, best, others)] == expected


def test_subnets_without_a_score_are_not_chosen():
    assert [each.sequence_id for each in chosen(searched([0.3, NAN, 0.1]), 5, 5)] == [2, 0]
    assert chosen(searched([NAN]), 1, 1) == []


@pytest.mark.parametrize("score", ["loss", "top1"])
def test_confidence_is_kendall_s_tau(score):
    losses, reached = [0.1, 0.2, 0.3, 0.4, 0.5], [0.2, 0.1, 0.3, 0.5, 0.4]
    found = confidence(searched(losses, score), alone(*enumerate(reached)))
    expected = kendalltau(losses, reached).statistic
    assert found.tau == pytest.approx(expected) and found.subnets == 5
    assert found.low <= found.tau <= found.high
    right = sum(
        (losses[a] < losses[b]) == (reached[a] < reached[b]) for a in range(5) for b in range(a)
    )
    assert found.right_pairs == pytest.approx(100 * right / 10)


def test_a_reversed_order_is_minus_one_and_few_are_nothing():
    search = searched([0.1, 0.2, 0.3, 0.4])
    assert confidence(search, alone((0, 4.0), (1, 3.0), (2, 2.0), (3, 1.0))).tau == -1
    assert confidence(search, alone((0, 4.0), (1, 3.0), (2, 2.0))) is None
    assert confidence(search, alone((0, 4.0), (1, 3.0), (2, 2.0), (3, NAN))) is None


def test_what_is_written_is_read_and_the_newest_of_a_subnet_counts(tmp_path):
    search = searched([0.5] * 4, path=tmp_path)
    assert read_retrained(search) == []
    other = TERMS._replace(steps=9)
    lines = [*alone((3, 0.5), (1, 0.25)), *alone((3, 0.75), terms=other), *alone((3, 0.125))]
    for each in lines:
        append_retrained(tmp_path, each)
    found = read_retrained(search)
    assert found == lines[1:]
    assert newest_alike(found) == [lines[1], lines[3]]
    assert newest_alike([]) == []


def test_what_a_full_disk_cut_off_is_written_over(tmp_path):
    search, path = searched([0.5] * 4, path=tmp_path), tmp_path / "retrained.jsonl"
    one, other = alone((3, 0.5), (1, 0.25))
    append_retrained(tmp_path, one)
    path.write_bytes(path.read_bytes() + b'{"subnet": 2, "st')
    assert read_retrained(search) == [one]
    append_retrained(tmp_path, other)
    assert read_retrained(search) == [one, other]


def test_an_infinite_loss_stays_one(tmp_path):
    (bad,) = alone((3, math.inf))
    append_retrained(tmp_path, bad._replace(scores=Scores(math.inf, 0.1, NAN)))
    (found,) = read_retrained(searched([0.5] * 4, path=tmp_path))
    assert found.scores == Scores(math.inf, 0.1, NAN)


def test_equal_ones_are_half_right():
    found = confidence(
        searched([0.1, 0.2, 0.3, 0.4]), alone((0, 1.0), (1, 2.0), (2, 2.0), (3, 2.0))
    )
    assert found.right_pairs == pytest.approx(100 * (3 + 3 / 2) / 6)


UNKNOWN = '{"subnet": 9, "steps": 1, "seed": 1, "judged_by": "", "run": ""}'


@pytest.mark.parametrize("line", ["", "{}", '{"subnet": -1}', "[", '{"subnet": "x"}', UNKNOWN])
def test_a_damaged_line_is_named(tmp_path, line):
    append_retrained(tmp_path, alone((3, 0.5))[0])
    path = tmp_path / "retrained.jsonl"
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(LogError, match=r"retrained.jsonl:2: expected a subnet that was trained"):
        read_retrained(searched([0.5] * 4, path=tmp_path))
