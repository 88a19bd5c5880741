"""What a test registers is gone after it."""

from __future__ import annotations

import copy

import pytest

from naspipe.core.settings.pipeline_groups import ORDERS as ORDER_NAMES
from naspipe.core.settings.pipeline_groups import PARTITIONS
from naspipe.planning.partitions import PLACEMENTS
from naspipe.runtime.blocks.exchanges import EXCHANGES
from naspipe.stage.builder import GATES, ORDERS


@pytest.fixture(autouse=True)
def registries():
    lists, tables = (ORDER_NAMES, PARTITIONS), (PLACEMENTS, EXCHANGES, GATES, ORDERS)
    before = [copy.copy(each) for each in (*lists, *tables)]
    yield
    for each, kept in zip((*lists, *tables), before, strict=True):
        each.clear()
        each.extend(kept) if isinstance(each, list) else each.update(kept)
