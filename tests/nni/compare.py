"""naspipe against the plain loop over NNI's modules."""

from __future__ import annotations

import torch
from torch import nn

import naspipe
from naspipe.store.checkpoints import read_checkpoint
from naspipe.streams.stream_file import read_stream
from naspipe.worker.checkpoints.restored import from_raw
from tests.nni.plain import NniLoop
from tests.nni.spaces import batches, make
from tests.oracle import bits

DRAWING = {"shufflenet": {"dropout": 21}}
"""Modules that draw, and the block of the chain that they are in."""


def differences(name, directory, *, steps, stages, seed=1, lr=0.01):
    """What differs between a run of naspipe and the plain loop; empty when nothing does."""
    space = naspipe.from_nni(make(name))
    run = naspipe.train(
        space, batches, nn.CrossEntropyLoss(), steps=steps, seed=seed, lr=lr, stages=stages,
        optimizer_options={"momentum": 0.9}, run_dir=directory,
    )  # fmt: skip
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    try:
        loop = NniLoop(make(name), lr, DRAWING.get(name, ()))
        for y, choices in enumerate(read_stream(run.directory.stream)):
            loop.step(seed, y, space.decisions.sample_of(choices), batches(seed, y))
    finally:
        torch.use_deterministic_algorithms(False)
        torch.set_num_threads(threads)
    wrong = [
        f"loss of step {y}"
        for y, (found, loss) in enumerate(
            zip(run.directory.read_losses(), loop.losses, strict=True)
        )
        if int(found.bits, 16) != int.from_bytes(bits(loss)[2], "little")
    ]
    theirs = loop.tensors()
    for key, raw in read_checkpoint(run.directory.checkpoint("final")).tensors.items():
        kept = key.split("/", 2)[2]
        if theirs.get(kept) != bits(from_raw(raw)):
            wrong.append(kept)
    return wrong


def stages_agree(name, directory, *, steps, stages, seed=1, lr=0.01):
    """What differs between a run on one stage and on several."""
    states = []
    for number in (1, stages):
        run = naspipe.train(
            naspipe.from_nni(make(name)), batches, nn.CrossEntropyLoss(), steps=steps, seed=seed,
            lr=lr, stages=number, run_dir=directory / str(number),
        )  # fmt: skip
        losses = enumerate(run.directory.read_losses())
        by_step = {f"loss of step {y}": loss.bits for y, loss in losses}
        states.append(by_step | read_checkpoint(run.directory.checkpoint("final")).tensors)
    one, several = states
    return [key for key in one.keys() | several.keys() if one.get(key) != several.get(key)]
