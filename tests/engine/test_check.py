"""The least budget, in one line that says what to do."""

from __future__ import annotations

import pytest

from naspipe.config.errors import ConfigError
from naspipe.engine.residency import check_budget


def test_the_least_budget_is_accepted():
    check_budget(150, 100, 50)


def test_less_is_refused():
    with pytest.raises(ConfigError) as caught:
        check_budget(1499, 1000, 500)
    assert str(caught.value) == (
        "memory budget: expected at least 1500 bytes per stage (1000 for its shared layers and 500 "
        "for its largest layer, optimizer state included), found 1499"
    )


@pytest.mark.parametrize(("found", "meant"), [(2, "2GiB"), (512, "512MiB")])
def test_a_number_without_its_unit(found, meant):
    with pytest.raises(ConfigError, match=f"found {found}; write a unit, as in {meant}$"):
        check_budget(found, 1000, 500)
