"""Disks that are full or slow, and a stage that fails, as a checkpointer meets them."""

from __future__ import annotations

import errno
import os
import threading

import pytest

from naspipe.config.errors import StorageError
from naspipe.config.ids import FIRST_STREAM, INITIAL
from naspipe.worker.checkpoints.checkpointer import Part
from tests.worker.checkpoints.bench import SECONDS, STEM, Bench


@pytest.fixture
def bench(tmp_path):
    with Bench(tmp_path) as made:
        yield made


def no_space(*arguments):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def finished(bench, *cuts):
    for cut in cuts:
        bench.checkpointer.capture(STEM, (INITIAL,), cut)
        bench.checkpointer.finish(FIRST_STREAM, cut)
        bench.wait()


@pytest.mark.parametrize("told_by", ["report", "drain"])
def test_a_disk_that_is_full_is_one_line_behind_the_parts_that_are_good(
    bench, monkeypatch, told_by
):
    with bench.checkpointer as checkpointer:
        finished(bench, 4)
        monkeypatch.setattr(Part, "finish", no_space)
        finished(bench, 8)
        with pytest.raises(
            StorageError, match=r"checkpoint at subnet 8: .* cannot be written: .*No space left"
        ) as caught:
            getattr(checkpointer, told_by)()
    assert "\n" not in str(caught.value)
    assert [body["cut"] for body in bench.reported] == [4]


def test_what_else_goes_wrong_is_raised_as_it_is(bench, monkeypatch):
    def broken(*arguments):
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(Part, "finish", broken)
    with bench.checkpointer as checkpointer:
        finished(bench, 4)
        with pytest.raises(ZeroDivisionError, match="ours"):
            checkpointer.report()


def test_a_stage_that_fails_still_hands_on_what_it_has_captured_whole(bench):
    """It may be the part that the other stages wait for; and no thread is left."""
    with pytest.raises(RuntimeError, match="a layer"), bench.checkpointer as checkpointer:
        checkpointer.capture(STEM, (INITIAL,), 4)
        checkpointer.finish(FIRST_STREAM, 4)
        checkpointer.capture(STEM, (INITIAL,), 8)
        raise RuntimeError("a layer")
    assert [body["cut"] for body in bench.reported] == [4]
    assert not [each for each in threading.enumerate() if each.name == "naspipe-checkpoint"]


def test_a_slow_disk_holds_the_training_up_instead_of_filling_memory(bench, monkeypatch):
    """One part is written, one waits, and the third finish waits with it."""
    gate, finish = threading.Event(), Part.finish

    def slow(*arguments):
        assert gate.wait(SECONDS)
        return finish(*arguments)

    monkeypatch.setattr(Part, "finish", slow)
    with bench.checkpointer as checkpointer:
        for cut in (4, 8, 12):
            checkpointer.capture(STEM, (INITIAL,), cut)
        checkpointer.finish(FIRST_STREAM, 4)
        third = threading.Thread(
            target=lambda: [checkpointer.finish(FIRST_STREAM, cut) for cut in (8, 12)]
        )
        third.start()
        third.join(0.3)
        assert third.is_alive()
        gate.set()
        third.join(SECONDS)
        checkpointer.drain()
    assert [body["cut"] for body in bench.reported] == [4, 8, 12]
