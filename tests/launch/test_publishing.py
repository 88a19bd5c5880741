"""Parts of all stages become one checkpoint; too early, damaged or twice is no checkpoint."""

from __future__ import annotations

import errno
import json
import os

import pytest

from naspipe.config.errors import LogError, StorageError
from naspipe.launch.claim import Publisher
from naspipe.store.checkpoints import CheckpointFolder, cut_name
from naspipe.store.losses import SectionLosses, check_losses
from naspipe.store.shards import RawTensor
from tests.store.shards import write_shard


class Reader:
    """Notes what was published; still needs some of it."""

    def __init__(self):
        self.told, self.needs = [], []

    def published(self, stream, cut):
        self.told.append((stream, cut))

    def needed(self, stream):
        return self.needs


class Bench:
    def __init__(self, path, stages=2, keep=2):
        self.path, self.reader = path, Reader()
        self.folder = CheckpointFolder(path / "checkpoints")
        self.losses = SectionLosses([path / "losses.jsonl"])
        self.publisher = Publisher(
            [range(stages)], 3, [self.folder], [self.losses], keep, self.reader
        )

    def lose(self, *subnets):
        for y in subnets:
            self.losses.append(0, y, 0.5, "3f000000")

    def part(self, stage, cut):
        """What a stage writes and then says."""
        tensors = {"param/w": RawTensor("U8", (2,), bytes([stage, cut]))}
        directory = self.folder.working(cut_name(cut), 3)
        shard = write_shard(directory, f"stage-{stage}.safetensors", {f"0/{stage}.0/": tensors})
        kinds = {kind: {} for kind in ("history", "scalars", "strides")}
        versions = {f"0/{stage}.0": cut - 1}
        return {"stream": 0, "cut": cut, "shard": shard, "versions": versions, **kinds}

    def publish(self, cut):
        for stage in (0, 1):
            self.publisher.take(stage, self.part(stage, cut))


@pytest.fixture
def bench(tmp_path):
    made = Bench(tmp_path)
    with made.losses:
        yield made


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_checkpoint_is_there_with_the_last_of_its_parts(bench, order):
    bench.lose(*range(6))
    first, last = order
    bench.publisher.take(first, bench.part(first, 4))
    assert bench.folder.cuts == [] and bench.reader.told == [] and bench.publisher.newest == {}
    bench.publisher.take(last, bench.part(last, 4))
    assert bench.reader.told == [(0, 4)] and bench.publisher.newest == {0: 4}
    found = bench.folder.latest().checkpoint
    assert found.subnets == 4 and found.versions == {"0/0.0": 3, "0/1.0": 3}
    assert {name: raw.data for name, raw in found.tensors.items()} == {
        f"0/{stage}.0/param/w": bytes([stage, 4]) for stage in (0, 1)
    }


def test_parts_of_two_cuts_may_come_mixed(bench):
    bench.lose(*range(8))
    for stage, cut in ((0, 4), (0, 8), (1, 8), (1, 4)):
        bench.publisher.take(stage, bench.part(stage, cut))
    assert bench.reader.told == [(0, 8), (0, 4)]
    assert bench.folder.latest().checkpoint.subnets == 8


def test_the_losses_that_belong_to_it_are_in_its_manifest(bench, tmp_path):
    bench.lose(*range(6))
    bench.publish(4)
    manifest = json.loads((bench.folder.path / cut_name(4) / "manifest.json").read_text())
    lines = (tmp_path / "losses.jsonl").read_bytes().splitlines(keepends=True)
    assert manifest["losses"][0] == len(b"".join(lines[:4])) and manifest["generation"] == 3
    check_losses(tmp_path / "losses.jsonl", tuple(manifest["losses"]))


def test_without_all_losses_below_the_cut_there_is_none(bench):
    bench.lose(0, 1, 3)
    with pytest.raises(LogError, match="expected the losses of 4 subnets, found 2"):
        bench.publish(4)
    assert bench.folder.cuts == []


def test_old_ones_go_but_not_those_that_are_still_read(bench):
    bench.lose(*range(16))
    bench.reader.needs = [8]
    for cut in (4, 8, 12, 16):
        bench.publish(cut)
    assert bench.folder.cuts == [16, 12, 8]


def test_of_joined_streams_a_cut_stays_until_all_have_one_beyond_it(tmp_path, request):
    """They go on at the newest cut that all have; one of them may be many cuts ahead."""
    folders = [CheckpointFolder(tmp_path / name) for name in ("fast", "slow")]
    losses = [SectionLosses([tmp_path / f"{n}.jsonl"], is_trained=False) for n in range(2)]
    for each in losses:
        request.addfinalizer(each.__exit__)
    publisher = Publisher([[0], [0]], 0, folders, losses, 1, Reader(), [{0, 1}])
    kinds = {kind: {} for kind in ("versions", "history", "scalars", "strides")}

    def publish(stream, cut):
        folder = folders[stream].working(cut_name(cut), 0)
        shard = write_shard(folder, "stage-0.safetensors", {})
        publisher.take(0, {"stream": stream, "cut": cut, "shard": shard, **kinds})
        return [folder.cuts for folder in folders]

    for cut in (4, 8, 12, 16):
        publish(0, cut)
    assert publish(1, 4) == [[16, 12, 8, 4], [4]]
    assert publish(1, 8) == [[16, 12, 8], [8]]
    assert publish(0, 20) == [[20, 16, 12, 8], [8]]


def test_a_disk_that_fails_is_one_line_and_the_older_ones_stay(bench, monkeypatch):
    bench.lose(*range(8))
    bench.publish(4)

    def full(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(CheckpointFolder, "publish", full)
    with pytest.raises(StorageError, match=r"checkpoint at subnet 8: .* No space left") as caught:
        bench.publish(8)
    assert "\n" not in str(caught.value)
    assert bench.folder.latest().checkpoint.subnets == 4 and bench.publisher.newest == {0: 4}
