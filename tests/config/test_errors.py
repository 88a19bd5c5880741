"""Errors cross a process pool of the user's own."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from naspipe.config.errors import (
    ConfigError,
    NotPreparedError,
    RunInterruptedError,
    StageFailedError,
)


@pytest.mark.parametrize(
    "error",
    [
        ConfigError("stages: expected 1 to 64, found 0"),
        NotPreparedError("digits", Path("data"), "digits: not prepared"),
        RunInterruptedError(15, "SIGTERM", from_elsewhere=True),
        StageFailedError(1, "0.3F@1", "Traceback\nValueError: no", "host"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_comes_out_of_a_pool_as_it_was_raised(error):
    again = copy.copy(error)  # by the same way as through a pipe
    assert type(again) is type(error)
    assert (str(again), again.args, vars(again)) == (str(error), error.args, vars(error))
