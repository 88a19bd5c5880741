"""Parts of checkpoints that are written while they are captured, in blocks of a page."""

from __future__ import annotations

import errno
import os
import threading

import pytest
import torch
from torch import nn

from naspipe.config.blocks import Block, Shared
from naspipe.config.errors import InvariantError, StorageError
from naspipe.config.ids import FIRST_STREAM, INITIAL, LayerId, StageId
from naspipe.config.rules import Exact
from naspipe.config.space import Space
from naspipe.store.checkpoints import cut_name
from naspipe.store.shards import ShardWriter, read_shard
from naspipe.worker.checkpoints import restored as capture_memory
from naspipe.worker.checkpoints.capturing import Capturer
from naspipe.worker.checkpoints.checkpointer import Part
from naspipe.worker.checkpoints.restored import CaptureMemory
from naspipe.worker.layers.layer_store import LayerStore
from tests.oracle import bits
from tests.worker.checkpoints.bench import SECONDS, SGD, Bench, held, read

PAGE = 4096


def wide():
    return nn.Sequential(nn.Linear(20, 30), nn.Linear(30, 20))


def mixed():
    return nn.Sequential(nn.Linear(20, 20), nn.BatchNorm1d(20), nn.Linear(20, 9).to(torch.bfloat16))


def huge():
    return nn.Linear(70, 70)


def small():
    return nn.Linear(2, 1)


def space():
    blocks = [Block([wide, mixed, huge, small]) for _ in range(24)]
    return Space("wide", [Shared("stem", wide, rule=Exact()), *blocks])


LAYERS = [LayerId(FIRST_STREAM, 1 + number, number % 4) for number in range(24)]


@pytest.fixture
def small_blocks(monkeypatch):
    """The blocks that are made."""
    made, make = [], capture_memory.Block.__init__

    def counted(block):
        made.append(block)
        make(block)

    monkeypatch.setattr(capture_memory, "BLOCK_BYTES", PAGE)
    monkeypatch.setattr(capture_memory.Block, "__init__", counted)
    return made


def add(part, store, layers=LAYERS):
    """Capture layers; returns what they hold."""
    capturer, expected = Capturer(), {}
    for layer in layers:
        stored = store[layer]
        key = f"0/{layer.block - 1}.{layer.candidate}"
        part.add(key, capturer.capture(stored, (stored.version,), part.captured))
        expected |= {f"{key}/{name}": value for name, value in held(stored).items()}
    part.close()
    return expected


def written(part, directory):
    entry = part.finish()["shard"]
    found = read_shard(directory, entry)
    return {name: (raw.dtype, raw.shape, raw.data) for name, raw in found.items()}


def alike(expected):
    """As :func:`written`."""
    names = {"torch.float32": "F32", "torch.bfloat16": "BF16", "torch.int64": "I64"}
    return {name: (names[dtype], shape, data) for name, (dtype, shape, data) in expected.items()}


@pytest.mark.parametrize("num_parameters", [0, 100, 10_000])
def test_all_layers_come_back_from_few_blocks(tmp_path, small_blocks, num_parameters):
    """However much room is left for the header; of several dtypes, and of more than a block."""
    store = LayerStore(space(), 0, SGD)
    with Part(tmp_path, StageId(1), CaptureMemory(), lambda: num_parameters) as part:
        expected = add(part, store)
        assert written(part, tmp_path) == alike(expected)
    total = sum(len(data) for _, _, data in expected.values())
    assert total > 39 * PAGE and len(small_blocks) <= 9  # a huge layer, and one of each other size


def test_a_part_that_is_given_up_leaves_no_file_and_gives_its_memory_back(tmp_path, small_blocks):
    memory = CaptureMemory()
    with pytest.raises(ZeroDivisionError), Part(tmp_path, StageId(1), memory, lambda: 1) as part:
        add(part, LayerStore(space(), 0, SGD))
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []
    assert len(memory._free) == len(small_blocks)


def test_a_layer_comes_once(tmp_path):
    store = LayerStore(space(), 0, SGD)
    with Part(tmp_path, StageId(1), CaptureMemory(), lambda: 1) as part:
        add(part, store, LAYERS[:1])
        with pytest.raises(InvariantError, match=r"layer 0/0\.0 was captured twice"):
            add(part, store, LAYERS[:1])


@pytest.fixture
def bench(tmp_path, small_blocks):
    with Bench(tmp_path, own_space=space()) as made:
        yield made


def captured(bench, cut):
    """Every layer, for the checkpoint at a cut; returns what they hold."""
    expected = {}
    for layer in LAYERS:
        bench.checkpointer.capture(layer, (bench.store[layer].version,), cut)
        expected[f"0/{layer.block - 1}.{layer.candidate}"] = held(bench.store[layer])
    return expected


def test_checkpoints_hold_what_the_layers_were_although_blocks_are_used_again(bench, small_blocks):
    """Layers are written again at once, and the next checkpoint is captured meanwhile."""
    expected = {}
    with bench.checkpointer as checkpointer:
        for cut in (4, 8, 12):
            expected[cut] = captured(bench, cut)
            for layer in LAYERS:
                bench.write(layer, cut)
            checkpointer.finish(FIRST_STREAM, cut)
        checkpointer.drain()
    for cut, layers in expected.items():
        found = bench.published(cut)
        assert {key: read(found, key) for key in layers} == layers
    total = 3 * sum(len(v[2]) for each in expected[12].values() for v in each.values())
    assert len(small_blocks) < total / PAGE


def test_it_is_written_before_all_is_captured(bench):
    began = threading.Event()

    def append(*arguments):
        began.set()

    with pytest.MonkeyPatch.context() as patched, bench.checkpointer:
        patched.setattr(ShardWriter, "append", append)
        captured(bench, 4)
        assert began.wait(SECONDS)


def test_a_block_that_cannot_be_written_is_one_line_when_all_is_captured(bench, monkeypatch):
    """What comes behind it is not tried; the checkpoint before is good, and nothing is left."""

    def no_space(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with bench.checkpointer as checkpointer:
        expected = captured(bench, 4)
        checkpointer.finish(FIRST_STREAM, 4)
        bench.wait()
        checkpointer.report()
        with monkeypatch.context() as patched:
            patched.setattr(os, "pwrite", no_space)
            captured(bench, 8)
            checkpointer.finish(FIRST_STREAM, 8)
            bench.wait()
        with pytest.raises(
            StorageError, match=r"checkpoint at subnet 8: .*No space left"
        ) as caught:
            checkpointer.report()
    assert "\n" not in str(caught.value)
    assert not list(bench.folder.working(cut_name(8), 5).iterdir())
    found = bench.published(4)
    assert {key: read(found, key) for key in expected} == expected


def test_a_stage_that_fails_leaves_nothing_of_what_is_captured_in_part(bench):
    with pytest.raises(ZeroDivisionError), bench.checkpointer:
        captured(bench, 4)
        raise ZeroDivisionError
    working = bench.folder.working(cut_name(4), 5)
    assert not working.exists() or not list(working.iterdir())
    assert bench.store[LAYERS[0]].version == INITIAL and not bench.reported


def test_the_same_bits_as_before(tmp_path, small_blocks):
    """A tensor over several blocks."""
    store = LayerStore(space(), 0, SGD)
    layer = LayerId(FIRST_STREAM, 3, 2)
    with Part(tmp_path, StageId(0), CaptureMemory(), lambda: 2) as part:
        add(part, store, [layer])
        found = written(part, tmp_path)
    assert found["0/2.2/param/weight"][2] == bits(store[layer].module.weight)[2]
