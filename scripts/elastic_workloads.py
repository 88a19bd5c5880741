"""Students and teachers on real data, tiny: those of EDL-Dist, a chain of text, a supernet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

import naspipe as npp
import search_spaces
from naspipe.export.pytorch_form import load_pytorch
from naspipe.jobs.losses import distilling
from naspipe.jobs.workload import Workload
from naspipe.streams.stream_file import read_stream
from scripts.tiny_workload import tiny_workload
from tests.equivalence.harness import oracle_of, plain_torch
from tests.oracle import PlainLoop

SEED = 1


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is trained, and whom it learns from."""

    name: str
    space: npp.Space
    data: Any
    loss: Any
    teacher: npp.Teacher
    optimizer: str = "SGD"
    lr: float = 0.02
    options: dict[str, Any] = field(default_factory=lambda: {"momentum": 0.9})

    def train(self, path: Path, steps: int, passes: str = "one", **how: Any) -> npp.Run:
        """One run of it."""
        stages, resume, data = how.pop("stages", 1), how.pop("resume", False), how.pop("data", None)
        return npp.train(
            self.space, data or self.data, self.loss, steps=steps, seed=SEED, lr=self.lr,
            optimizer=self.optimizer, optimizer_options=self.options, stages=stages, run_dir=path,
            recipe={"passes": passes}, execution=how, teacher=self.teacher, resume=resume,
        )  # fmt: skip

    def plain_loop(self, run: npp.Run, passes: int = 1) -> PlainLoop:
        """The same in one process, with the teacher's forward before each pass."""
        loop = oracle_of(self.space, SEED, self.optimizer, self.lr, self.options)
        teacher = [block.candidates[0]().eval() for block in self.teacher.space.blocks]
        chains = [self.space.chain(choices) for choices in read_stream(run.directory.stream)]
        learns = distilling(self.loss)
        with plain_torch():
            for step in range(len(chains) // passes):
                numbers = range(step * passes, (step + 1) * passes)
                batches = [self.data(SEED, number) for number in numbers]
                taught = iter([self._label(teacher, batch) for batch in batches])
                pairs = [(chains[y], batch) for y, batch in zip(numbers, batches, strict=True)]

                def loss(output: Any, target: Any, taught: Iterator[Any] = taught) -> Any:
                    return learns(output, next(taught), target)

                loop.take(step, pairs, loss, averages_loss=True)
        return loop

    def _label(self, teacher: list[nn.Module], batch: Any) -> torch.Tensor:
        state: tuple[Any, ...] = ()
        with torch.no_grad():
            for position, module in enumerate(teacher):
                fields = [batch[name] for name in self.teacher.space.fields(position)]
                found = module(*state, *fields)
                state = found if isinstance(found, tuple) else (found,)
        return state[0]


def _trained(named: Workload, path: Path, steps: int) -> npp.Run:
    return npp.train(
        named.space, named.data, named.loss, steps=steps, seed=7, lr=named.recipe.lr,
        optimizer=named.recipe.optimizer, optimizer_options=named.recipe.optimizer_options,
        run_dir=path,
    )  # fmt: skip


def _image(name: str, student: str, teacher: str, size: int, place: Path) -> Case:
    """One plain network that teaches another one."""
    named = tiny_workload(student, {"batch_size": size})
    run = _trained(tiny_workload(teacher, {"batch_size": size}), place / f"{name}-teacher", 8)
    return Case(
        name=name, space=named.space, data=named.data, loss=npp.losses.SoftTarget(),
        teacher=npp.Teacher(run),
    )  # fmt: skip


def _exported(name: str, sizes: dict[str, int], place: Path) -> tuple[Workload, npp.Teacher]:
    """A space with its data, and a subnet of it that was trained and exported."""
    named = tiny_workload(name, sizes)
    run = _trained(named, place / f"{name}-run", 6)
    choices = read_stream(run.directory.stream)[-1]
    npp.export_subnet(run, choices, place / f"{name}-exported")
    return named, npp.Teacher(load_pytorch(place / f"{name}-exported"))


def _text(place: Path) -> Case:
    """Two encoders and two decoders that learn from a subnet of 24 and 24."""
    named, teacher = _exported("nlp.c3", {"max_tokens": 400}, place)
    blocks = named.space.blocks
    encoders, decoders = (
        [npp.Block([block.candidates[0]]) for block in blocks if getattr(block, "kind", "") == kind]
        for kind in ("encoder", "decoder")
    )
    shared = [block for block in blocks if isinstance(block, npp.Shared)]
    chain = [shared[0], *encoders[:2], shared[1], *decoders[:2], *shared[2:]]
    return Case(
        name="text", space=npp.Space("nlp-chain", chain), data=named.data, loss=named.loss,
        teacher=teacher, optimizer="Adam", lr=1e-3, options={},
    )  # fmt: skip


def _supernet(place: Path) -> Case:
    named, teacher = _exported("cv.c3", {"batch_size": 8}, place)
    return Case(
        name="supernet", space=named.space, data=named.data, loss=named.loss, teacher=teacher,
        lr=0.01,
    )  # fmt: skip


def _digits(place: Path) -> Case:
    """Small enough for tests: the blocks of MobileNetV3 on digits."""
    data = npp.data.open_data("digits", batch_size=6)
    made = [search_spaces.build(name, "tiny", data.info) for name in ("mobilenet-v3", "cnn")]
    torch.manual_seed(3)
    modules = [block.candidates[0]() for block in made[1].blocks]
    return Case(
        name="digits", space=made[0], data=data, loss=npp.losses.SoftTarget(),
        teacher=npp.Teacher(modules),
    )  # fmt: skip


CASES: dict[str, Callable[[Path], Case]] = {
    "resnets": lambda place: _image("resnets", "resnet50", "resnet101", 32, place),
    "mobile": lambda place: _image("mobile", "mobilenet-v3", "resnet50", 64, place),
    "text": _text,
    "supernet": _supernet,
    "digits": _digits,
}
"""By name; the last one is that of the tests."""
