"""The digits, whose batches take long enough for a run to be ended half-way."""

from __future__ import annotations

import time

from naspipe.data import open_data

_SECONDS = 0.01


class Slow:
    """A quick data set, slowed down."""

    def __init__(self, name, **settings):
        self._quick = open_data(name, **settings)
        self.info = self._quick.info

    def __call__(self, seed, number):
        time.sleep(_SECONDS)
        return self._quick(seed, number)


batches = Slow("digits", batch_size=8)
views = Slow("views:digits", batch_size=8, batches=2)
