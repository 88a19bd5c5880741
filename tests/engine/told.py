"""A manager told and asked in short words. Layers are numbers."""

from __future__ import annotations

from naspipe.config.ids import LayerId
from naspipe.engine.commands import EvictLayer, LoadLayer, SaveLayer
from naspipe.engine.predictor import Drawn, Forecast
from naspipe.engine.residency import ResidencyManager
from tests.engine.device import FORWARD, Size, Sizes

WORDS = {LoadLayer: "load", SaveLayer: "save", EvictLayer: "evict"}


def layers(*numbers):
    return [LayerId(0, number, 0) for number in numbers]


def layer(number):
    return LayerId(0, number, 0)


def ahead(forecast):
    """Of distinct lists of one; layers not in it are needed by nobody."""
    return lambda: Forecast((), Drawn([each] for each in forecast), forecast)


def shown(commands):
    return ", ".join(f"{WORDS[type(command)]} {command.layer.block}" for command in commands)


class Told:
    """A manager told and asked in short words; ``sizes`` are those of layers 0, 1, 2, ..."""

    def __init__(self, budget, sizes, permanent=(), **options):
        rows = [size if isinstance(size, Size) else Size(size) for size in sizes]
        table = Sizes({(number, 0): size for number, size in enumerate(rows)})
        self.manager = ResidencyManager(
            budget, table, {(0, block) for block in permanent}, **options
        )

    def plan(self, *forecast, demanded=False, token=None):
        return shown(self.manager.plan(ahead(layers(*forecast)), demanded, token))

    def demand(self, *forecast):
        return self.plan(*forecast, demanded=True)

    def loaded(self, *numbers):
        for number in numbers:
            self.manager.on_loaded(layer(number))

    def saved(self, *numbers):
        for number in numbers:
            self.manager.on_saved(layer(number))

    def acquire(self, *numbers):
        return self.manager.acquire(layers(*numbers))

    def use(self, *numbers, kind=FORWARD):
        assert self.acquire(*numbers) == len(numbers)
        self.release(*numbers, kind=kind)

    def release(self, *numbers, kind=FORWARD):
        for number in numbers:
            self.manager.release(layer(number), kind)

    def put(self, *numbers):
        """Make these resident, one after the other."""
        for number in numbers:
            assert self.plan(number) == f"load {number}"
            self.loaded(number)
        return self


def on_device(told):
    return [found.block for found in told.manager.ledger.resident]
