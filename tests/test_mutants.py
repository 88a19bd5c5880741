"""A mutant that no longer fits the code is reported as such, and not taken for a rule's guard."""

from __future__ import annotations

import pytest

from naspipe.config.errors import InvariantError, NaspipeError
from tests.mutants import turns_red


def test_a_failure_for_the_named_reason_is_accepted():
    with turns_red("read .* before it was written"):
        raise InvariantError("layer 3.1: version 5 was read 2 ms before it was written")


@pytest.mark.parametrize(
    ("error", "report"),
    [
        (NaspipeError("stage 1 failed in 0.2F: TypeError: broken() takes 1"), "does not fit"),
        (AssertionError("12 losses differ"), "expected a failure for the reason"),
    ],
)
def test_any_other_failure_is_reported(error, report):
    with pytest.raises(pytest.fail.Exception, match=report), turns_red("before it was written"):
        raise error


def test_a_mutant_that_survives_is_reported():
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"), turns_red("anything"):
        pass
