"""Stages that compute with several threads, forked from a process that has done so, too."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import naspipe as npp
from naspipe.machine.forking import in_own_thread
from tests.equivalence import spaces
from tests.equivalence.test_blockwise import distill
from tests.faults.helpers import assert_identical

LIMIT = {"timeout_seconds": 20.0}


@pytest.fixture(autouse=True)
def helpers():
    """As a user's process may have them."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    nn.BatchNorm1d(64)(torch.randn(4096, 64)).sum()
    yield
    torch.set_num_threads(before)


def held_out(seed, number):
    return spaces.vectors(seed + 9, number)


def test_a_run_on_two_stages_does_not_wait_for_threads_that_are_elsewhere(tmp_path):
    """Nor do the profile before it and the validation beside it."""
    runs = [
        npp.train(
            spaces.mixed(), spaces.vectors, nn.CrossEntropyLoss(), steps=8, seed=3,
            run_dir=tmp_path / str(stages), stages=stages, recipe={"threads": 2},
            held_out=held_out,
            execution={**LIMIT, "validate_every": 4, "validate_subnets": "2"},
        )
        for stages in (1, 2)
    ]  # fmt: skip
    assert_identical(*runs)
    texts = [(tmp_path / stages / "validation.jsonl").read_text() for stages in ("1", "2")]
    assert texts[0] == texts[1] and len([json.loads(each) for each in texts[0].splitlines()]) == 2


def test_blockwise(tmp_path):
    """Its definition computes in the launcher."""
    one, two = (
        distill(tmp_path / str(stages), stages, recipe={"threads": 2}, execution=LIMIT)
        for stages in (1, 2)
    )
    for blocks in zip(one.blocks, two.blocks, strict=True):
        assert_identical(*blocks)


def test_what_is_raised_is_raised_where_it_is_waited_for():
    def fail():
        raise npp.ConfigError("one line")

    for threads in (1, 2):
        with pytest.raises(npp.ConfigError, match="one line"):
            in_own_thread(threads, fail)
        assert in_own_thread(threads, lambda: 5) == 5


def test_teachers_of_its_own(tmp_path):
    torch.manual_seed(0)
    teacher = npp.Teacher(
        nn.Sequential(nn.Linear(16, 512), nn.BatchNorm1d(512), nn.Linear(512, 10))
    )
    runs = [
        npp.train(
            spaces.mixed(), spaces.vectors, nn.CrossEntropyLoss(), steps=8, seed=3, stages=2,
            run_dir=tmp_path / labels, recipe={"threads": 2}, teacher=teacher,
            execution={**LIMIT, "labels": labels, "teachers": 2 * (labels == "service")},
        )
        for labels in ("pipeline", "service")
    ]  # fmt: skip
    assert_identical(*runs)
