"""Work in a process of its own, behind a caller that has computed."""

from __future__ import annotations

import time
from functools import partial

import pytest
import torch

from naspipe.machine import forking as apart
from naspipe.machine.forking import done_apart

SECONDS = 30
"""Far more than it takes."""


@pytest.fixture
def several_threads():
    """A caller that has computed with helpers: they do not come along into a fork."""
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    root()
    yield
    torch.set_num_threads(before)


def root(_=None):
    return {"sum": float(torch.full((1 << 20,), 4.0).sqrt().sum())}


def test_it_computes_where_the_caller_had_helpers(several_threads):
    assert done_apart(root, "roots", SECONDS) == {"sum": 2.0 * (1 << 20)}


@pytest.mark.parametrize(("seconds", "said"), [(SECONDS, 0), (0.0, 1)])
def test_slow_work_is_told_of(monkeypatch, seconds, said):
    monkeypatch.setattr(apart, "SLOW_SECONDS", seconds)
    told = []
    told_by = partial(told.append, "slow")
    work = done_apart(lambda _: time.sleep(0.3) or {"sum": 1}, "a sum", SECONDS, told_by)
    assert work == {"sum": 1} and len(told) == said
