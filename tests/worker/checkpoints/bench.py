"""A checkpointer over real layers and folders."""

from __future__ import annotations

import threading

import torch
from torch import nn

from naspipe.config.blocks import Block, Shared
from naspipe.config.ids import FIRST_STREAM, LayerId
from naspipe.config.recipe import Recipe
from naspipe.config.rules import Lag
from naspipe.config.space import Space
from naspipe.launch.claim import merge_parts
from naspipe.store.checkpoints import CheckpointFolder, cut_name, read_checkpoint
from naspipe.worker.checkpoints.checkpointer import Checkpointer, CheckpointStream
from naspipe.worker.checkpoints.restored import from_raw
from naspipe.worker.layers.layer_store import LayerStore
from tests.oracle import bits

SECONDS = 20.0
"""Deadline of every wait."""
SGD = Recipe(optimizer="SGD", lr=0.1, optimizer_options={"momentum": 0.9})


def space():
    return Space("small", [
        Shared("stem", lambda: nn.Linear(3, 4), rule=Lag(1)),
        Block([lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), nn.Identity]),
    ])  # fmt: skip


STEM = LayerId(FIRST_STREAM, 0, 0)
FIRST, EMPTY = LayerId(FIRST_STREAM, 1, 0), LayerId(FIRST_STREAM, 1, 1)


class Log:
    """What a checkpoint relies on; notes what is done to it."""

    def __init__(self, path):
        self.file, self.done = path.open("wb"), []

    def flush(self):
        self.done.append("flush")

    def fileno(self):
        self.done.append("fileno")
        return self.file.fileno()


class Bench:
    """A checkpointer over real layers and folders; a context manager."""

    def __init__(self, path, *, restored=None, every=4, streams=1, own_space=None):
        own_space = own_space or space()
        path.mkdir(exist_ok=True)
        self.log, self.reported = Log(path / "log"), []
        self.woken = threading.Semaphore(0)
        self.streams = []
        for number in range(streams):
            store = LayerStore(
                own_space, number, SGD, restore=restored.restore if restored else None
            )
            folder = CheckpointFolder(path / f"checkpoints-{number}")
            self.streams.append(CheckpointStream(own_space, folder, store, restored, self.log))
        self.store, self.folder = self.streams[0].store, self.streams[0].folder
        self.checkpointer = Checkpointer(2, 5, self.streams, every, self, self.woken.release)

    def report(self, kind, body):
        """As a stage's reporter."""
        assert kind == "part"
        self.reported.append(body)

    def write(self, layer, subnet, keeps_base=False):
        """One WRITE with gradients of ones."""
        stored = self.store[layer]
        gradients = {name: torch.ones_like(p) for name, p in stored.parameters.items()}
        stored.write(gradients, subnet, stored.version, keeps_base, int(subnet), 0.1)

    def wait(self, parts=1):
        for _ in range(parts):
            assert self.woken.acquire(timeout=SECONDS)

    def published(self, cut, number=0):
        """The checkpoint of this stage alone."""
        (part,) = [body for body in self.reported if (body["stream"], body["cut"]) == (number, cut)]
        folder = self.streams[number].folder
        folder.publish(cut_name(cut), 5, merge_parts(cut, [part]))
        return read_checkpoint(folder.path / cut_name(cut))

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.log.file.close()


def held(stored):
    return {
        name: bits(value) if isinstance(value, torch.Tensor) else value
        for name, value in stored.tensors()
    }


def read(checkpoint, key):
    """A layer as a checkpoint has it."""
    found = {name: bits(from_raw(raw)) for name, raw in checkpoint.tensors.items()}
    found |= checkpoint.scalars
    return {n.removeprefix(f"{key}/"): v for n, v in found.items() if n.startswith(f"{key}/")}
