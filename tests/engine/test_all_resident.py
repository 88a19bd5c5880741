"""Without a budget everything is there, and the manager takes over every answer."""

from __future__ import annotations

import inspect

from naspipe.config.ids import AccessKind, LayerId
from naspipe.engine.residency import Residency, ResidencyManager

A, B = LayerId(0, 0, 0), LayerId(0, 1, 0)


def test_nothing_ever_moves():
    everything = Residency()
    assert everything.acquire([A, B]) == 2
    everything.release(A, AccessKind.WRITE)
    everything.save_first(A)
    everything.on_loaded(A)
    everything.on_saved(A)
    assert not everything.needs_save(A)
    assert [*everything.forget(A), *everything.arrive(A)] == []

    def unmade():
        raise AssertionError("nobody has to look ahead")

    assert list(everything.plan(unmade, True, 1)) == []


def test_the_methods_are_those_of_the_manager():
    def public(kind):
        return {
            name: inspect.signature(value) if inspect.isfunction(value) else None
            for name, value in vars(kind).items()
            if not name.startswith("_")
        }

    assert public(Residency) == public(ResidencyManager)
