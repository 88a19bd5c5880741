"""What leaves a stage goes when it is saved, and until then the stage is not through."""

from __future__ import annotations

from naspipe.config.ids import LayerId, StageId
from naspipe.engine.commands import PushVersion
from naspipe.engine.events import COPY, SUM
from naspipe.engine.gates import Gates
from naspipe.engine.history import Departure
from naspipe.engine.mirroring import Transfers
from naspipe.engine.residency import Residency

LAYER = LayerId(0, 1, 0)


class Book:
    """Version 3 of every layer is the newest."""

    def newest(self, layer):
        return 3


class Writes:
    """No sum is missing."""

    def lacks_sum(self, layer, version):
        return False


def transfers(residency):
    return Transfers(StageId(0), None, Book(), residency, Writes(), Gates([]), None)


class Saving(Residency):
    """A layer is dirty until it is told otherwise."""

    def __init__(self):
        self.is_dirty, self.first = True, []

    def needs_save(self, layer):
        return self.is_dirty

    def save_first(self, layer):
        self.first.append(layer)


def test_a_layer_leaves_when_it_is_saved_and_copies_leave_at_once():
    residency = Saving()
    departures = transfers(residency)
    copy, total = (Departure(LAYER, 3, StageId(1), parcel) for parcel in (COPY, SUM))
    later = Departure(LAYER, 7, StageId(1), SUM)
    assert departures.depart([copy, total, later]) == [PushVersion(*copy)]
    assert LAYER in residency.first and departures.are_pending
    residency.is_dirty = False
    assert departures.ready(LAYER) == [PushVersion(*total)]
    assert departures.ready(LAYER) == [] and departures.are_pending, "version 7 is not there yet"


def test_nothing_is_pending_without_departures():
    departures = transfers(Residency())
    assert departures.depart([Departure(LAYER, 3, StageId(1))]) and not departures.are_pending
