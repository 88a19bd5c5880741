"""A broken rule has to turn its test red for its own reason, and for no other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from naspipe.config.errors import NaspipeError

ACCIDENTS = r"\b(Type|Attribute|Name|Key|Index|UnboundLocal|Import|ZeroDivision)Error\b"
"""What a mutant raises if it no longer fits the code that it replaces."""


@contextmanager
def turns_red(reason: str) -> Iterator[None]:
    """Expect a failure whose message matches ``reason``, a regular expression.

    A mutant with the wrong signature fails as well, with a TypeError in a stage that arrives here
    as an error of the run. That is not accepted, so the test says that its mutant is out of date.
    """
    with pytest.raises((AssertionError, NaspipeError)) as caught:
        yield
    message = str(caught.value)
    if accident := re.search(ACCIDENTS, message):
        pytest.fail(f"the mutant does not fit the code any more ({accident[0]}): {message}")
    if not re.search(reason, message):
        pytest.fail(f"expected a failure for the reason {reason!r}, found: {message}")
