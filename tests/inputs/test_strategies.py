"""What proposes subnets is named, or an object that is made already."""

from __future__ import annotations

import pytest
from torch import nn

import naspipe as npp
from naspipe.config.errors import ConfigError
from tests.equivalence import spaces


def test_no_strategy_at_all(tmp_path):
    with pytest.raises(ConfigError) as caught:
        npp.search_subnets(
            npp.Run(spaces.mixed(), tmp_path), spaces.vectors, nn.CrossEntropyLoss(), strategy=None
        )
    assert str(caught.value) == (
        "strategy: expected a name, as in 'evolution', or an object with propose and observe, "
        "found None; leave it out for the usual one"
    )
