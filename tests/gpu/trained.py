"""Cases that train a space: kinds of layers, budgets, optimizers, groups."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from unittest.mock import patch

import torch
from torch import nn

import naspipe as npp
from naspipe.api import training
from naspipe.config.rules import Every
from naspipe.wire import device_rings
from tests.equivalence import spaces
from tests.equivalence.harness import assert_same_bits, plain_loop
from tests.gpu import networks
from tests.wire.host_memory import HostMemory

MOMENTUM = {"momentum": 0.9, "weight_decay": 1e-4}
ADAM = {"optimizer": "Adam", "options": {}, "lr": 1e-3}
LEAST = "0.001x"
"""Raised to the least budget that a stage can run with."""

OPTIMIZERS = (
    ("Adagrad",), ("Adam", "AdamW", "NAdam", "RAdam"), ("ASGD", "Rprop", "Adafactor"),
    ("Adamax", "RMSprop", "Adadelta", "SGD"),
)  # fmt: skip
"""All that naspipe takes but LARS, which is its own; those of a row are trained side by side."""

SEED = 1


@dataclass(frozen=True, kw_only=True)
class Case:
    """A space, its data and recipe, and how it is run."""

    space: npp.Space = field(default_factory=spaces.mixed)
    data: object = spaces.vectors
    plain_data: object = None
    """For the plain loop; the same by default."""
    loss: object = field(default_factory=nn.CrossEntropyLoss)
    steps: int = 16
    stages: tuple[int, ...] = (1, 2, 4)
    optimizer: str = "SGD"
    options: dict = field(default_factory=MOMENTUM.copy)
    lr: float = 0.02
    bf16: bool = False
    recipe: dict = field(default_factory=dict)
    execution: dict = field(default_factory=dict)
    expects_retries: bool = False

    def train(self, device, place):
        """One run for each number of stages."""
        return [
            npp.train(
                self.space, self.data, self.loss, steps=self.steps, seed=SEED, lr=self.lr,
                optimizer=self.optimizer, optimizer_options=self.options, stages=number,
                run_dir=place / f"{number}", execution={**self.execution, "device": device},
                recipe={"precision": "bf16" if self.bf16 else "float32", **self.recipe},
            )
            for number in self.stages
        ]  # fmt: skip

    def compare(self, runs, device):
        """Every run has the plain loop's bits."""
        plain = self.plain(runs[0], device)
        for number, run in zip(self.stages, runs, strict=True):
            try:
                assert_same_bits(run, plain)
            except AssertionError as error:
                raise AssertionError(f"on {number} stages: {error}") from error
        retries = sum(stage["memory_retries"] for stage in runs[0].manifest["measured"]["stages"])
        assert retries or not self.expects_retries, "memory was never short, so nothing was tried"

    def plain(self, run, device):
        """The plain loop over the subnets of a run."""
        return plain_loop(
            self.space, self.plain_data or self.data, self.loss, run, seed=SEED, lr=self.lr,
            optimizer=self.optimizer, options=self.options, bf16=self.bf16, device=device,
            **self.recipe,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ByCudaIpc(Case):
    """Inputs go through memory of GPUs; stages may share one here, as the way is the same."""

    ring_bytes: int = device_rings.RING_BYTES

    def train(self, device, place):
        """As any case; without a GPU through host memory in its place."""
        memory = HostMemory if device == "cpu" else device_rings.MEMORY
        with (
            patch.object(device_rings, "MEMORY", memory),
            patch.object(device_rings, "RING_BYTES", self.ring_bytes),
            patch.object(training, "check_data_path", lambda *_: None),
        ):
            return super().train(device, place)


@dataclass(frozen=True, kw_only=True)
class SideBySide:
    """Streams of one pipeline, each with an optimizer of its own."""

    names: tuple[str, ...]
    stages: int = 2
    steps: int = 12
    execution: dict = field(default_factory=dict)

    def _case(self, name):
        return Case(
            steps=self.steps, optimizer=name, lr=0.01, options=MOMENTUM if name == "SGD" else {}
        )

    def train(self, device, place):
        """All in one launch."""
        cases = map(self._case, self.names)
        jobs = [
            npp.workload(
                each.space, each.data, each.loss, seed=SEED, steps=each.steps, lr=each.lr,
                optimizer=each.optimizer, optimizer_options=each.options,
            )
            for each in cases
        ]  # fmt: skip
        execution = npp.Execution(stages=self.stages, device=device, **self.execution)
        return npp.train_together(jobs, execution, place / "run")

    def compare(self, runs, device):
        """Each stream has the bits of its own plain loop."""
        wrong = []
        for name, run in zip(self.names, runs, strict=True):
            try:
                assert_same_bits(run, self._case(name).plain(run, device))
            except AssertionError as error:
                wrong.append(f"{name}: {error}")
        assert not wrong, "; ".join(wrong)


def stages():
    """Kinds of layers and of tensors between stages."""
    return {
        "mixed": Case(steps=25),
        "views at offsets": Case(space=networks.offsets(), stages=(1, 2, 4)),
        "maps": Case(space=spaces.maps(), data=spaces.images, stages=(1, 2)),
        "two tensors": Case(space=spaces.several(), stages=(2,)),
        "memory": Case(space=spaces.memory(), data=spaces.sequences, stages=(2,)),
        "bf16, adam": Case(bf16=True, **ADAM, stages=(2,)),
        "recompute": Case(execution={"recompute": True}, stages=(1, 2)),
    }


def ipc():
    """Inputs through rings on the GPU."""
    execution = {"data_path": "cuda_ipc"}
    return {
        "2 and 4 stages": ByCudaIpc(stages=(2, 4), execution=execution),
        "views at offsets": ByCudaIpc(
            space=networks.offsets(), stages=(2,), execution=execution
        ),
        "two tensors, rings for one input": ByCudaIpc(
            space=spaces.several(), stages=(3,), execution=execution, ring_bytes=2 * 12 * 24 * 4
        ),
        "maps, bf16": ByCudaIpc(
            space=spaces.maps(), data=spaces.images, bf16=True, stages=(2,), execution=execution
        ),
        "a budget": ByCudaIpc(**ADAM, stages=(2,), execution={**execution, "memory_budget": "2x"}),
    }  # fmt: skip


def budgets():
    """Layers that are on the device while they are needed."""
    balanced = {"partition": "balanced"}
    return {
        **{
            f"budget {text}": Case(
                **ADAM, stages=(1, 2), execution={**balanced, "memory_budget": text}
            )
            for text in (LEAST, "1.5x", "3x")
        },
        "Adagrad, the least budget": Case(
            optimizer="Adagrad", options={}, lr=0.01, stages=(2,),
            execution={"memory_budget": LEAST},
        ),
        "views at offsets, recompute": Case(
            space=networks.offsets(), stages=(2,),
            execution={"recompute": True, "memory_budget": "1.5x"},
        ),
        "short of memory": Case(
            space=networks.hungry(), data=networks.capped_vectors,
            plain_data=networks.big_vectors, steps=3, stages=(1,), expects_retries=True,
        ),
    }  # fmt: skip


def optimizers():
    """State that is made in a constructor, in a step, on the host and beside its parameter."""
    cases = {", ".join(names): SideBySide(names=names) for names in OPTIMIZERS}
    swapped = {"memory_budget": "2x"}
    for names in (("ASGD", "NAdam"), ("Adamax", "Rprop")):
        cases[f"{', '.join(names)}, swapped"] = SideBySide(names=names, execution=swapped)
    every = Every(4, momentum=0.5)
    cases["every(4)"] = Case(space=spaces.mixed(front=every), stages=(2,))
    predicted = npp.Lag(2, predicts=True)
    cases["lag(2,predict)"] = Case(space=spaces.mixed(front=predicted), stages=(2,))
    return cases


def groups():
    """Two groups, each with its passes of a step."""
    space = spaces.mixed()
    stem = npp.Shared("stem", _normed_stem, rule=npp.Lag(3))
    lagging = npp.Space("deferred", [stem, *space.blocks[1:]])
    grouped = partial(Case, steps=8, options={"momentum": 0.9}, execution={"groups": 2})
    more = {"clip_global_norm": 1.0, "ema": 0.9}
    passes = {"passes": "accumulate:4"}
    return {
        "ordered norms": grouped(stages=(1, 2), recipe=passes),
        "deferred norms": grouped(
            space=lagging, stages=(1, 2), recipe={**passes, "norms": "deferred"}
        ),
        "clipped and averaged": grouped(stages=(2,), recipe={**passes, **more}),
        "subnets:4, deferred": grouped(
            space=lagging, stages=(2,), recipe={"passes": "subnets:4:users", "norms": "deferred"}
        ),
        "a tree": grouped(
            space=lagging, stages=(1,), recipe={**passes, "norms": "deferred", "reduction": "tree"}
        ),
        "the least budget": Case(
            steps=8, **ADAM, stages=(2,), recipe=passes,
            execution={"groups": 2, "memory_budget": LEAST},
        ),
    }  # fmt: skip


def _normed_stem():
    return torch.nn.Sequential(nn.Linear(16, 24), nn.BatchNorm1d(24, momentum=0.2))
