"""Data sets that keep a file open: read in several processes, each batch has its own rows."""

from __future__ import annotations

import io
import os
import zipfile

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import naspipe as npp
from naspipe.config.errors import NaspipeError

ROWS, WIDTH = 64, 4096


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found = tmp_path_factory.mktemp("rows")
    rows = np.random.RandomState(0).randn(ROWS, WIDTH).astype("float32")
    rows[:, 0] = np.arange(ROWS)
    rows.tofile(found / "rows.bin")
    np.savez(found / "rows.npz", **{str(row): each for row, each in enumerate(rows)})
    with zipfile.ZipFile(found / "rows.zip", "w") as archive:
        for row, each in enumerate(rows):
            content = io.BytesIO()
            np.save(content, each)
            archive.writestr(f"{row}.npy", content.getvalue())
    return found


MADE: list[Lazy] = []


@pytest.fixture(autouse=True)
def closed():
    yield
    for each in MADE:
        if each.file is not None:
            each.file.close()
    MADE.clear()


class Lazy(torch.utils.data.Dataset):
    """Opens its file at the first item, or at once; says in which processes items were read."""

    def __init__(self, folder, early=False):
        self.folder, self.file = folder, None
        MADE.append(self)
        if early:
            self.file = self.open()

    def __len__(self):
        return ROWS

    def __getitem__(self, row):
        with (self.folder / "processes").open("a") as processes:
            processes.write(f"{os.getpid()}\n")
        if self.file is None:
            self.file = self.open()
        x = torch.from_numpy(self.read(row).copy())
        return x / 100, row % 2, torch.tensor(float(x[0] == row))


class Raw(Lazy):
    def open(self):
        return (self.folder / "rows.bin").open("rb")

    def read(self, row):
        self.file.seek(4 * WIDTH * row)
        half = self.file.read(2 * WIDTH)  # another process may move the offset in between
        return np.frombuffer(half + self.file.read(2 * WIDTH), dtype="float32")


class Archive(Lazy):
    def open(self):
        return zipfile.ZipFile(self.folder / "rows.zip")

    def read(self, row):
        return np.load(io.BytesIO(self.file.read(f"{row}.npy")))


class Arrays(Lazy):
    def open(self):
        return np.load(self.folder / "rows.npz")

    def read(self, row):
        return self.file[str(row)]


def loss(output, target, right):
    return functional.cross_entropy(output, target)


def wrong(output, target, right):
    return (1 - right).sum()


def batches_of(dataset, workers=0):
    fields = ("input", "target", "right")
    return npp.from_dataset(dataset, batch_size=8, fields=fields, workers=workers)


def train(path, dataset, workers=0, **more):
    return train_on(path, batches_of(dataset, workers), **more)


def train_on(path, data, **more):
    torch.manual_seed(0)
    space = npp.chain([nn.Linear(WIDTH, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)])
    return npp.train(
        space, data, loss, loss_fields=("target", "right"), metrics={"wrong": wrong}, lr=0.01,
        steps=40, progress=False, run_dir=path, **more,
    )  # fmt: skip


@pytest.fixture(scope="module")
def expected(folder, tmp_path_factory):
    run = train(tmp_path_factory.mktemp("runs") / "plain", Raw(folder))
    assert not any(run.metrics["wrong"])
    return run.losses


HOW = [{"stages": 2}, {"workers": 2}, {"stages": 2, "workers": 2}]


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("how", HOW, ids=str)
@pytest.mark.parametrize("kind", [Raw, Archive, Arrays])
def test_no_process_moves_the_place_of_another(tmp_path, folder, expected, kind, how, early):
    dataset = kind(folder, early)
    first = dataset[3]  # as a user who looks at an item before the run
    assert first[2] == 1
    run = train(tmp_path / "run", dataset, checkpoint_every=10, **how)
    assert not any(run.metrics["wrong"]) and run.losses == expected


@pytest.mark.parametrize("how", HOW, ids=str)
def test_nor_after_a_failure_and_a_resume(tmp_path, folder, expected, how):
    dataset, broken = Archive(folder), tmp_path / "broken"
    batches = batches_of(dataset, how.get("workers", 0))

    def data(seed, number):
        if number == 25 and broken.exists():
            raise OSError("the disk is gone")
        return batches(seed, number)

    more = {"checkpoint_every": 10, "stages": how.get("stages", 1)}
    broken.touch()
    with pytest.raises(NaspipeError, match="the disk is gone"):
        train_on(tmp_path / "run", data, **more)
    broken.unlink()
    run = train_on(tmp_path / "run", data, resume=True, **more)
    assert not any(run.metrics["wrong"]) and run.losses == expected


@pytest.mark.parametrize("more", [{}, {"checkpoint_every": 10, "validate_every": 10}])
@pytest.mark.parametrize("stages", [2, 3])
def test_the_launcher_reads_nothing(tmp_path, folder, stages, more):
    """On several stages: then what users' data open, open processes that end before others start,
    or those that train."""
    (folder / "processes").unlink(missing_ok=True)
    held_out = {"held_out": batches_of(Raw(folder))} if more else {}
    train(tmp_path / "run", Raw(folder), stages=stages, **more, **held_out)
    train(tmp_path / "run", Raw(folder), stages=stages, resume=True, **more, **held_out)
    processes = (folder / "processes").read_text().split()
    assert processes and str(os.getpid()) not in processes
