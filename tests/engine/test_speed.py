"""What the manager costs at every event of a controller."""

from __future__ import annotations

import statistics
import time

import pytest

from naspipe.config.ids import LayerId
from naspipe.engine.residency import LEAST_AHEAD
from tests.engine.device import FORWARD, Case, Sizes
from tests.engine.told import ahead

BOUND_NS = 40_000
"""Four times the promise, so that a busy machine does not fail."""


def median_ns(step):
    times = []
    for _ in range(300):
        start = time.perf_counter_ns()
        step()
        times.append(time.perf_counter_ns() - start)
    return statistics.median(times)


@pytest.mark.alone
def test_nothing_to_do_is_cheap(capsys):
    layers = [LayerId(0, block, choice) for choice in range(20) for block in range(50)]
    sizes = Sizes(dict.fromkeys((layer[1:] for layer in layers), 10))
    manager = Case(sizes, frozenset(), 10_000, [], max_loads=1000).manager()
    for begin in range(0, len(layers), LEAST_AHEAD):
        manager.plan(ahead(layers[begin : begin + LEAST_AHEAD]))
    for layer in layers:
        manager.on_loaded(layer)
    run = layers[:5]

    def use():
        assert manager.acquire(run) == 5
        for layer in run:
            manager.release(layer, FORWARD)

    assert list(manager.plan(ahead(layers), False, 1)) == []
    settled = median_ns(lambda: manager.plan(ahead(layers), False, 1))
    walked = median_ns(lambda: manager.plan(ahead(layers)))
    used = median_ns(use)
    with capsys.disabled():
        print(
            f"\nplan with nothing new {settled / 1000:.1f} us, after a look at the forecast "
            f"{walked / 1000:.1f} us; acquire and release of 5 layers {used / 1000:.1f} us"
        )
    assert settled <= BOUND_NS
