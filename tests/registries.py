"""Names that tests add to the registries of placements, exchanges, gates and orders, taken back."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

from naspipe.config.execution import ORDERS as ORDER_NAMES
from naspipe.config.execution import PARTITIONS
from naspipe.engine.builder import GATES, ORDERS, READY_TASKS
from naspipe.plan.partitions import PLACEMENTS
from naspipe.worker.blocks.updates import EXCHANGES
from scripts.paper import orders


@contextmanager
def kept_registries() -> Iterator[None]:
    """What is registered inside is gone afterwards."""
    lists = (ORDER_NAMES, PARTITIONS)
    tables = (PLACEMENTS, EXCHANGES, GATES, ORDERS, READY_TASKS)
    before = [copy.copy(each) for each in (*lists, *tables)]
    try:
        yield
    finally:
        for each, kept in zip((*lists, *tables), before, strict=True):
            each.clear()
            each.extend(kept) if isinstance(each, list) else each.update(kept)


@contextmanager
def orders_for_comparison() -> Iterator[None]:
    """The orders ``gpipe`` and ``model-parallel`` can be chosen inside."""
    with kept_registries():
        orders.register()
        yield
