"""The kind of a step is known by its number, and no batch of either data is left out."""

from __future__ import annotations

import pytest
import torch

from naspipe.config.errors import ConfigError
from naspipe.mixed import Rounds
from naspipe.mixed.architecture import ARCHITECTURE


def numbers(offset):
    def data(seed, number):
        return {"input": torch.tensor([seed, offset + number])}

    return data


def test_rounds_by_hand():
    """As published: every fifth step, from a quarter of the steps on."""
    rounds = Rounds(numbers(0), numbers(100), every=5, start=10)
    kinds = [rounds.kind(step) for step in range(40)]
    assert [step for step, kind in enumerate(kinds) if kind == ARCHITECTURE] == [
        14,
        19,
        24,
        29,
        34,
        39,
    ]
    batches = [rounds(7, step) for step in range(40)]
    assert [int(batch["round"]) for batch in batches] == kinds
    seen = [batch["input"].tolist() for batch in batches]
    assert [n for _, n in seen if n < 100] == [*range(34)]
    assert [n for _, n in seen if n >= 100] == [*range(100, 106)]
    assert {seed for seed, _ in seen} == {7}


def test_passes_of_a_step_are_of_one_kind():
    rounds = Rounds(numbers(0), numbers(100), every=2, start=1, batches=3)
    seen = [int(rounds(0, number)["input"][1]) for number in range(15)]
    assert seen == [0, 1, 2, 3, 4, 5, 100, 101, 102, 6, 7, 8, 103, 104, 105]


def test_who_asks_for_the_round_alone_makes_nothing_else():
    def data(seed, number):
        raise AssertionError("made")

    batch = Rounds(data, data, every=1)(0, 3)
    assert int(batch["round"]) == ARCHITECTURE
    with pytest.raises(AssertionError, match="made"):
        batch["input"]
    assert sorted(Rounds(numbers(0), data, every=9)(0, 3)) == ["input", "round"]


def test_validation_has_the_field_and_the_record_says_both():
    data = numbers(0)
    data.validation = numbers(50)
    data.record = {"name": "numbers"}
    rounds = Rounds(data, numbers(100), every=4, start=2)
    batch = rounds.validation(1, 3)
    assert batch["input"].tolist() == [1, 53] and int(batch["round"]) == 0
    said = rounds.record
    assert (said["name"], said["every"], said["start"]) == ("numbers", 4, 2)
    assert "numbers" in said["held_out"]["name"]


@pytest.mark.parametrize("wrong", [{"every": 0}, {"start": -1}, {"batches": 0}])
def test_bad_input_is_one_line(wrong):
    with pytest.raises(ConfigError, match="rounds: expected every") as caught:
        Rounds(numbers(0), numbers(100), **wrong)
    assert "\n" not in str(caught.value)
