"""A stage's parts of checkpoints: what was captured is what is written, and reported once it is."""

from __future__ import annotations

import pytest

from naspipe.config.errors import InvariantError
from naspipe.config.ids import FIRST_STREAM, INITIAL
from naspipe.engine.commands import CaptureLayer, FinishCut
from naspipe.store.checkpoints import cut_name
from naspipe.worker.checkpoints.restored import Restored
from naspipe.worker.layers.layer_store import LayerStore
from tests.oracle import bits
from tests.worker.checkpoints.bench import EMPTY, FIRST, SGD, STEM, Bench, held, read, space


@pytest.fixture
def bench(tmp_path):
    with Bench(tmp_path) as made:
        yield made


def test_a_part_is_what_the_layers_were_when_they_were_captured(bench):
    """They go on being written while the thread writes, and before that."""
    with bench.checkpointer as checkpointer:
        bench.write(STEM, 2)
        bench.write(FIRST, 3)
        expected = held(bench.store[STEM]), held(bench.store[FIRST])
        checkpointer.carry_out(CaptureLayer(STEM, (2,), 4))
        checkpointer.carry_out(CaptureLayer(FIRST, (3,), 4))
        for layer in (STEM, FIRST):
            bench.write(layer, 4)
        checkpointer.carry_out(FinishCut(FIRST_STREAM, 4))
        for layer in (STEM, FIRST):
            bench.write(layer, 5)
        checkpointer.drain()
    found = bench.published(4)
    assert (read(found, "0/stem"), read(found, "0/0.0")) == expected
    assert found.versions == {"0/stem": 2, "0/0.0": 3}


def test_the_log_is_handed_over_before_and_on_disk_with_the_part(bench):
    with bench.checkpointer as checkpointer:
        bench.write(STEM, 3)
        checkpointer.capture(STEM, (3,), 4)
        assert bench.log.done == []
        checkpointer.finish(FIRST_STREAM, 4)
        assert bench.log.done[0] == "flush"
        bench.wait()
        assert bench.log.done == ["flush", "fileno"]


def test_a_part_is_reported_by_the_thread_that_computes_once_it_is_there(bench):
    with bench.checkpointer as checkpointer:
        bench.write(STEM, 3)
        checkpointer.capture(STEM, (3,), 4)
        checkpointer.report()
        checkpointer.finish(FIRST_STREAM, 4)
        bench.wait()
        assert bench.reported == []
        checkpointer.report()
        checkpointer.report()
    (body,) = bench.reported
    assert (body["stream"], body["cut"]) == (FIRST_STREAM, 4)
    assert (bench.folder.working(cut_name(4), 5) / "stage-2.safetensors").exists()


def test_older_versions_of_a_lagging_layer_belong_to_it(bench):
    with bench.checkpointer as checkpointer:
        bench.write(STEM, 0, keeps_base=True)
        older = {name: bits(value) for _, name, value in bench.store[STEM].copies((INITIAL,))}
        checkpointer.capture(STEM, (INITIAL, 0), 4)
        checkpointer.finish(FIRST_STREAM, 4)
        checkpointer.drain()
    found = bench.published(4)
    assert list(found.history["0/stem"]) == [INITIAL, 0]
    state = read(found, "0/stem")
    assert {n: v for n, v in state.items() if n.startswith("version/")} == {
        f"version/{INITIAL}/{name}": value for name, value in older.items()
    }


def test_a_version_that_is_not_there_is_our_mistake(bench):
    bench.write(STEM, 3)
    with pytest.raises(InvariantError, match="version 2 belongs to the checkpoint at 4, found 3"):
        bench.checkpointer.capture(STEM, (2,), 4)


def test_a_layer_that_was_never_used_is_made(bench):
    """A frozen one belongs to every checkpoint, although its first user has not come to it."""
    with bench.checkpointer as checkpointer:
        for layer in (FIRST, EMPTY):
            checkpointer.capture(layer, (INITIAL,), 4)
        checkpointer.finish(FIRST_STREAM, 4)
        checkpointer.drain()
    found = bench.published(4)
    assert read(found, "0/0.0") == held(LayerStore(space(), 0, SGD)[FIRST])
    assert read(found, "0/0.1") == {} and found.versions == {"0/0.0": INITIAL, "0/0.1": INITIAL}


def published(bench):
    """The checkpoint at 4, to go on from."""
    with bench.checkpointer as checkpointer:
        bench.write(STEM, 2)
        bench.write(FIRST, 3)
        checkpointer.capture(STEM, (2,), 4)
        checkpointer.capture(FIRST, (3,), 4)
        checkpointer.finish(FIRST_STREAM, 4)
        checkpointer.drain()
    return Restored(space(), FIRST_STREAM, bench.published(4))


def test_what_nobody_has_used_since_the_resume_goes_on_as_it_was(bench, tmp_path):
    restored = published(bench)
    with Bench(tmp_path / "next", restored=restored) as after, after.checkpointer as checkpointer:
        expected = held(bench.store[FIRST])
        after.write(STEM, 5)
        checkpointer.capture(STEM, (5,), 8)
        checkpointer.capture(FIRST, (3,), 8)
        assert after.store.find(FIRST) is None, "not made for that"
        with pytest.raises(InvariantError, match="version 4 belongs to the checkpoint at 8"):
            checkpointer.capture(FIRST, (4,), 8)
        checkpointer.finish(FIRST_STREAM, 8)
        checkpointer.drain()
    found = after.published(8)
    assert found.versions == {"0/stem": 5, "0/0.0": 3}
    assert read(found, "0/0.0") == expected
    assert read(found, "0/stem") == held(after.store[STEM])


@pytest.mark.parametrize(
    ("every", "due", "patience"), [(4, [8, 12], 1), (0, [], 0), (1, [*range(5, 16)], 0)]
)
def test_where_checkpoints_take_their_place(bench, tmp_path, every, due, patience):
    """Behind the one that the life began with, which is not written again."""
    with Bench(tmp_path / "next", restored=published(bench), every=every) as after:
        assert [y for y in range(16) if after.checkpointer.is_due(FIRST_STREAM, y)] == due
        assert after.checkpointer.patience == patience
        is_new = [after.checkpointer.is_new(FIRST_STREAM, y) for y in (3, 4, 5)]
        assert is_new == [False, False, True]


def test_streams_have_files_of_their_own_in_which_each_is_the_only_one(tmp_path):
    bench = Bench(tmp_path, streams=2)
    second = STEM._replace(stream=1)
    with bench, bench.checkpointer as checkpointer:
        for stream, layer in ((0, STEM), (1, second)):
            checkpointer.capture(layer, (INITIAL,), 4 + stream)
        for stream in (1, 0):
            checkpointer.finish(stream, 4 + stream)
        checkpointer.drain()
    assert [(body["stream"], body["cut"]) for body in bench.reported] == [(1, 5), (0, 4)]
    first, other = bench.published(4), bench.published(5, 1)
    assert set(first.versions) == set(other.versions) == {"0/stem"}
    assert read(other, "0/stem") == held(LayerStore(space(), 1, SGD)[STEM])
    assert read(first, "0/stem") != read(other, "0/stem")
