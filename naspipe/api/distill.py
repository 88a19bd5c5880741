"""``naspipe.distill_blockwise``: a teacher's blocks, each taught to one student, side by side."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from naspipe.api.start_state import asked_resume
from naspipe.api.train import recipe_execution, workload
from naspipe.api.training import Training, Watch, start
from naspipe.api.workers import refusal_told
from naspipe.checks.data import check_is_data
from naspipe.config.blocks import Block, CopyOf, Elastic
from naspipe.config.errors import ConfigError
from naspipe.config.recipe import Recipe
from naspipe.config.rules import parse_rule
from naspipe.config.space import Space
from naspipe.distill.blockwise import (
    APART,
    DECOUPLED,
    RELAYS,
    BlockLoss,
    blockwise,
    folder,
    student_space,
)
from naspipe.distill.distillation import Distillation, carried_out
from naspipe.inputs.ends import modules_digest
from naspipe.inputs.run import Run, check_space, loss_layer_of
from naspipe.jobs.batches_apart import batches_kept
from naspipe.jobs.workload import Batches, Workload, define
from naspipe.launch.hosts import Worker
from naspipe.search.search_directory import Search, find_search
from naspipe.store.run_directory import RunDirectory
from naspipe.wire.ports import LaunchObserver
from naspipe.wire.reports import Observer
from naspipe.worker.layers.held_tensors import copied

Choices = Sequence[Sequence[int]]
"""For each student block, one choice per choice block."""


NETWORK = "students"
"""The name of the network that student blocks make."""


class Keyed:
    """Data that all blocks see alike, whatever their seeds."""

    def __init__(self, data: Batches, seed: int) -> None:
        self._data, self._seed = data, seed
        self.__module__ = getattr(data, "__module__", type(data).__module__)  # whose code it is
        self.record = dict(getattr(data, "record", None) or {"name": getattr(data, "__name__", "")})
        self.info = getattr(data, "info", {})

    def __call__(self, seed: int, number: int) -> Mapping[str, Any]:
        return self._data(self._seed, number)


@dataclass(frozen=True, slots=True)
class Blockwise:
    """A finished distillation."""

    blocks: tuple[Run, ...]
    """The run of each student block."""
    teachers: tuple[nn.Module, ...]
    """The teacher's blocks, frozen, in evaluation mode."""
    data: Batches
    """What all blocks were trained on."""
    losses: tuple[Any, ...]

    @classmethod
    def of(
        cls,
        run_dir: str | Path,
        teachers: Sequence[nn.Module],
        students: Sequence[Space | nn.Module],
        data: Batches,
        *,
        loss: Any = None,
        last_loss: Any = None,
    ) -> Blockwise:
        """Read a distillation; the arguments are those of :func:`naspipe.distill_blockwise`.

        Raises:
            ConfigError: if the directory holds no such distillation, or one of another teacher,
                other students or other losses.
        """
        blocks = tuple(deepcopy(each).eval().requires_grad_(False) for each in teachers)
        last = last_loss or nn.CrossEntropyLoss()
        losses: tuple[Any, ...] = (*[loss or BlockLoss()] * (len(blocks) - 1), last)
        path, digest = Path(run_dir), modules_digest(blocks)
        runs = read_blocks(path, students)
        if len(runs) != len(blocks):
            raise ConfigError(
                f"{path}: expected {len(runs)} blocks of a teacher, found {len(blocks)}"
            )
        for run, own in zip(runs, losses, strict=True):
            defined = define(run.space, Keyed(data, 0), own, recipe=Recipe(), steps=1)
            given = {
                "teacher": digest,
                "loss": defined.loss,
                "data": json.loads(json.dumps(dict(defined.data))),
            }
            recorded = run.manifest["definition"]
            for name, found in given.items():
                if recorded[name] != found:
                    raise ConfigError(
                        f"{run.directory.path}: expected the {name} that it was trained with, "
                        f"{recorded[name]!r:.80}, found {found!r:.80}"
                    )
        return cls(runs, blocks, data, losses)

    @property
    def seed(self) -> int:
        """The seed of the data."""
        return int(self.blocks[0].manifest["definition"]["seed"])

    def network(self, choices: Choices | None = None) -> nn.Sequential:
        """The student blocks as one network with their weights, in evaluation mode.

        Args:
            choices: one list for each block, with one choice per choice block; not needed if there
                is nothing to choose.

        Raises:
            ConfigError: for choices that do not fit.
        """
        return nn.Sequential(*(run.chosen(*each) for run, *each in self._chosen(choices))).eval()

    def space(self, choices: Choices | None = None, *, anew: bool = False) -> Space:
        """The same network as a space with one subnet, to be trained as any space is.

        Args:
            choices: as of :meth:`network`.
            anew: layers begin with initial weights, drawn from the seed of the new run; otherwise
                with those that they have.
        """
        blocks, modules = [], []
        for run, position, option in self._chosen(choices):
            block = run.space.blocks[position]
            factory = block.candidates[block.candidate(option)]
            if isinstance(block, Elastic):
                factory = partial(_first, block, option)
            if not anew:
                modules.append(run.chosen(position, option))
                factory = CopyOf(modules[-1], copied)
            blocks.append(Block([factory], fields=block.fields))
        return Space(NETWORK, blocks, weights=modules_digest(modules) if modules else "")

    def checked(self, choices: Choices | None) -> tuple[tuple[int, ...], ...]:
        """The choices of every block, filled in for blocks without anything to choose."""
        counts = [run.space.candidate_counts for run in self.blocks]
        is_fixed = [set(each) <= {1} for each in counts]
        if choices is None and all(is_fixed):
            choices = [()] * len(counts)
        if choices is None or len(choices) != len(counts):
            found = "none" if choices is None else len(choices)
            raise ConfigError(
                f"choices: expected those of {len(counts)} blocks, one list for each, found {found}"
            )
        only = [
            (0,) * len(each) if fixed else () for each, fixed in zip(counts, is_fixed, strict=True)
        ]
        filled = tuple(tuple(own) or one for own, one in zip(choices, only, strict=True))
        for run, own in zip(self.blocks, filled, strict=True):
            run.space.chain(own)
        return filled

    def ratings(self, name: str = "") -> tuple[Search, ...]:
        """What :func:`naspipe.rate_blocks` found of each block; the newest one by default.

        Raises:
            ConfigError: when a block has not been rated.
        """
        return tuple(find_search(run.directory.path, name) for run in self.blocks)

    def _chosen(self, choices: Choices | None) -> Iterator[tuple[Run, int, int]]:
        """The run, the position in its chain and the option of every layer of a network."""
        for run, own in zip(self.blocks, self.checked(choices), strict=True):
            for position, option in enumerate(run.space.chain(own)):
                yield run, position, option


def read_blocks(path: Path, students: Sequence[Space | nn.Module]) -> tuple[Run, ...]:
    """The runs of student blocks below a run directory."""
    there = 0
    while (path / folder(there) / "manifest.json").is_file():
        there += 1
    if there != len(students) or not there:
        raise ConfigError(
            f"{path}: expected the runs of {len(students)} student blocks, found {there}"
        )
    runs = []
    for number, student in enumerate(students):
        run = Run(student_space(student, number), path / folder(number))
        check_space(run)
        rules, loss_layer = run.manifest["definition"]["rules"], loss_layer_of(run.manifest)
        parsed = {name: parse_rule(rule) for name, rule in rules.items() if name != loss_layer}
        runs.append(Run(run.space.with_rules(parsed), run.directory.path))
    return tuple(runs)


def _first(block: Elastic, option: int) -> nn.Module:
    module: nn.Module = block.cut_of(block.factory(), option)
    return module


WINDOW = 4
"""Steps that a block of the teacher may be ahead of those who take its output."""


def distill_blockwise(
    teachers: Sequence[nn.Module],
    students: Sequence[Space | nn.Module],
    data: Batches,
    *,
    steps: int,
    loss: Any = None,
    last_loss: Any = None,
    stages: int = 1,
    seed: int = 0,
    sampler: str = "uniform",
    recipe: str | Path | Mapping[str, Any] | None = None,
    execution: Mapping[str, Any] | None = None,
    relay: str = DECOUPLED,
    window: int = WINDOW,
    run_dir: str | Path | None = None,
    resume: bool | str = False,
    observer: LaunchObserver | None = None,
    source: Mapping[str, Any] | None = None,
    **optimizer: Any,
) -> Blockwise:
    """Teach student block i what the teacher's block i makes of the teacher's output i - 1.

    Every block is a run of its own, with the bits of a plain loop in which the teacher goes through
    a batch and each student block takes its step; training block after block leaves the same.

    Args:
        teachers: the teacher's blocks, with their weights, in evaluation mode.
        students: of each of them a space, whose first block is called with the teacher's output
            before it, or modules. The last block's output must have the shape of the teacher's.
        data: pure; ``data(seed, step)`` returns named tensors.
        steps: of each student block.
        loss: of every student block but the last; with a method ``distill(output, taught)``. By
            default the mean square of the difference.
        last_loss: of the last one; by default cross entropy against the teacher's softmax.
        stages: stage processes. ``execution={"partition": ...}`` says which of them runs which
            block: ``free`` (the default), ``pairs``, ``packed``, ``layers`` or ``hybrid``.
        seed: of the data; block i has ``seed + i`` for its parameters, its paths and its draws.
        sampler: of every block's paths; ``recipe``, ``execution``, ``resume``, ``observer`` and
            ``optimizer`` (with ``lr`` and ``optimizer_options``) as of :func:`naspipe.train`.
        relay: ``decoupled``; for comparison ``barrier`` or ``apart``, see
            :data:`naspipe.distill.blockwise.RELAYS`. Changes no bit. Or as a setting of
            ``execution``, which then counts.
        window: steps that a block of the teacher may be ahead of those who take its output; or
            ``execution={"teacher_window": passes}``.
        run_dir: ``block-0``, ... and ``teacher-0``, ... lie below it.
        source: what a command line called it all, for the manifests.

    Raises:
        ConfigError: for input that cannot be used; nothing is written then.
    """
    how = {"relay": relay, "stages": stages, **(execution or {})}
    taught = blockwise_streams(
        teachers,
        students,
        data,
        loss=loss,
        last_loss=last_loss,
        relay=how["relay"],
        window=window,
        steps=steps,
        seed=seed,
        sampler=sampler,
        recipe=recipe,
        **optimizer,
    )
    training = start_blockwise(
        taught,
        recipe,
        how,
        run_dir,
        watch=lambda *_: nullcontext(observer or Observer()),
        resume=resume,
        source=source,
    )
    return Blockwise.of(training.path, teachers, students, data, loss=loss, last_loss=last_loss)


def start_blockwise(
    taught: Distillation,
    recipe: str | Path | Mapping[str, Any] | None,
    execution: Mapping[str, Any],
    run_dir: str | Path | None,
    *,
    watch: Watch,
    resume: bool | str,
    source: Mapping[str, Any] | None,
    name: str = "blockwise",
    worker: Worker | None = None,
    carry_out: Callable[[Training], None] = Training.run,
) -> Training:
    """Train what :func:`blockwise_streams` returned; see :func:`naspipe.api.training.start`.

    The relay is among the settings of the ``execution``.
    """
    with refusal_told(worker):
        relay = execution.get("relay", DECOUPLED)
        carried = recipe_execution(recipe, **{"partition": RELAYS[relay], **execution})
        resuming = asked_resume(resume, run_dir)
        if run_dir is not None:
            first = RunDirectory(Path(run_dir) / folder(0))
            if resuming["resumes"] or (resuming["may_resume"] and first.manifest.exists()):
                began = (first.read_manifest().get("requested") or {}).get("relay", DECOUPLED)
                if relay != began and APART in (relay, began):
                    raise ConfigError(
                        f"relay={relay}: expected {began}, with which {run_dir} began, as each "
                        f"student has the teacher's blocks for itself with one of them alone; "
                        f"leave it out"
                    )
        taught = carried_out(taught, carried)
        if taught.workloads[0].recipe.steps.distills:
            raise ConfigError(
                f"blockwise: expected passes other than {taught.workloads[0].recipe.passes}, whose "
                f"first pass is a teacher already"
            )
    return start(
        taught,
        carried,
        run_dir,
        watch=watch,
        resume=resume,
        sources=[source or {}] * len(taught.workloads),
        name=name,
        worker=worker,
        carry_out=carry_out,
    )


def blockwise_streams(
    teachers: Sequence[nn.Module],
    students: Sequence[Space | nn.Module],
    data: Batches,
    *,
    seed: int = 0,
    loss: Any = None,
    last_loss: Any = None,
    relay: str = DECOUPLED,
    window: int = WINDOW,
    **how: Any,
) -> Distillation:
    """What :func:`distill_blockwise` trains, defined; ``how`` goes to :func:`naspipe.workload`."""
    check_is_data(data)

    def define(space: Space, batches: Batches, chosen: Any, number: int) -> Workload:
        return workload(space, batches, chosen, seed=seed + number, **how)

    with batches_kept():
        return blockwise(
            teachers,
            students,
            Keyed(data, seed),
            define,
            loss=loss,
            last_loss=last_loss,
            relay=relay,
            window=window,
        )
