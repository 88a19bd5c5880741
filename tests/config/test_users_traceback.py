"""What is left of a traceback: the frames of the user, and all of what naspipe raised itself."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from naspipe.config.errors import ConfigError
from naspipe.config.rules import parse_rule
from naspipe.config.user_code import called, users_traceback
from naspipe.worker.stage_main import failure_report


class Adds(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.Sequential(nn.Linear(3, 4))

    def forward(self, x):
        return self.parts(x)


def caught(call) -> Exception:
    with pytest.raises(Exception) as found:
        call()
    return found.value


def test_the_users_frames_and_what_was_called():
    def call():
        with called(lambda: "in layer 2.1 (Adds), called with [2, 5]"):
            Adds()(torch.ones(2, 5))

    text = failure_report("a task", caught(call))["traceback"]
    assert text.splitlines()[-2:] == [
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x5 and 3x4)",
        "in layer 2.1 (Adds), called with [2, 5]",
    ]
    assert "return self.parts(x)" in text and "container.py" not in text


def test_where_torch_alone_is_at_work_the_last_line_is_enough():
    def call():
        with called(lambda: "in layer 0.0"):
            nn.Linear(3, 4)(torch.ones(2, 5))

    assert "linear.py" not in users_traceback(caught(call))


def test_what_naspipe_says_of_it_comes_behind_the_users_frames():
    def call():
        try:
            Adds()(torch.ones(2, 5))
        except RuntimeError as error:
            raise ConfigError("layer 0.1 takes no such input") from error

    text = users_traceback(caught(call))
    assert text.splitlines()[-1] == "ConfigError: layer 0.1 takes no such input"
    assert "return self.parts(x)" in text and "container.py" not in text
    assert "direct cause" not in text


def test_what_it_came_from_is_told_too():
    def call():
        try:
            Adds()(torch.ones(2, 5))
        except RuntimeError as error:
            raise ValueError("no such shape") from error

    text = users_traceback(caught(call))
    assert "ValueError: no such shape" in text and "return self.parts(x)" in text
    assert "direct cause" in text and "container.py" not in text


def test_what_naspipe_raised_is_left_whole():
    text = users_traceback(caught(lambda: parse_rule("no")))
    assert "in parse_rule" in text and "rules.py" in text


def test_refusals_are_left_as_they_are():
    def call():
        with called(lambda: "in layer 1"):
            raise ConfigError("no")

    assert not hasattr(caught(call), "__notes__")
