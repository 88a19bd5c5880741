"""Every second test of this folder, by a checksum of its name, runs with split backwards.

Bits do not depend on it. So the folder tests both, in the time that it takes to test one. A test
runs the same way each time, whichever other tests are run. ``--backward split`` runs all tests with
split backwards, as before a change of how they are split; ``--backward whole`` runs none. A failure
reports the backward of its test.

A test that is about one of the two says so, ``@pytest.mark.backward("whole")``. What a test sets
itself (``execution={"backward": ...}``) stays.
"""

from __future__ import annotations

import zlib
from dataclasses import fields, replace

import pytest

from naspipe.config.execution import Execution
from naspipe.plan import simulation
from tests.registries import orders_for_comparison

BACKWARDS = ("whole", "split")


def backward_of(item: pytest.Item) -> str:
    """The backward of a test's runs, where the test does not set it."""
    if (marker := item.get_closest_marker("backward")) is not None:
        (named,) = marker.args
        return named
    number = zlib.crc32(item.nodeid.encode()) % len(BACKWARDS)
    return item.config.getoption("backward") or BACKWARDS[number]


@pytest.fixture(autouse=True)
def backward(request):
    """That of the test's runs."""
    chosen = backward_of(request.node)
    request.node.add_report_section("setup", "backward", chosen)
    (pipeline,) = (each for each in fields(Execution) if each.name == "pipeline")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "default", replace(pipeline.default, backward=chosen))
        yield chosen


@pytest.fixture(scope="module", autouse=True)
def orders():
    """Orders for comparison can be chosen: no bit depends on the order."""
    with orders_for_comparison():
        yield


@pytest.fixture(scope="module", autouse=True)
def short_previews():
    """Few subnets are simulated to choose an order and a partition: no bit depends on them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulation, "PREVIEW_SUBNETS", 4)
        yield
