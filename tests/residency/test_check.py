"""The least budget, in one line that says what to do."""

from __future__ import annotations

import pytest

from naspipe.core.errors import ConfigError
from naspipe.residency.check import check_budget


def test_the_least_budget_is_accepted():
    check_budget(150, 100, 50)


def test_less_is_refused():
    with pytest.raises(ConfigError) as caught:
        check_budget(149, 100, 50)
    assert str(caught.value) == (
        "memory budget: expected at least 150 bytes per stage (100 for its shared layers and 50 "
        "for its largest layer, optimizer state included), found 149"
    )
