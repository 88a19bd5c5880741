"""``naspipe.distill_blockwise``: distill each block of a teacher into a student block."""

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
"""The name of the network that consists of the student blocks."""


class Keyed:
    """Data that are the same for all blocks, whatever their seeds."""

    def __init__(self, data: Batches, seed: int) -> None:
        self._data, self._seed = data, seed
        self.__module__ = getattr(data, "__module__", type(data).__module__)  # the user's module
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
    """The data that all blocks were trained on."""
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
        """Return the student blocks as one network with their weights, in evaluation mode.

        Args:
            choices: one list for each block, with one choice per choice block; not needed if there
                are no choice blocks.

        Raises:
            ConfigError: if the choices do not fit.
        """
        return nn.Sequential(*(run.chosen(*each) for run, *each in self._chosen(choices))).eval()

    def space(self, choices: Choices | None = None, *, anew: bool = False) -> Space:
        """Return the same network as a space with one subnet, which can be trained like any space.

        Args:
            choices: as for :meth:`network`.
            anew: initialize the layers with the seed of the new run; otherwise they keep their
                weights.
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
        """Return the choices of all blocks, filled in for blocks without choices."""
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
        """Return the results of :func:`naspipe.rate_blocks` for each block, by default the newest.

        Raises:
            ConfigError: if a block has not been rated.
        """
        return tuple(find_search(run.directory.path, name) for run in self.blocks)

    def _chosen(self, choices: Choices | None) -> Iterator[tuple[Run, int, int]]:
        """Yield the run, the position in its chain and the option of every layer of a network."""
        for run, own in zip(self.blocks, self.checked(choices), strict=True):
            for position, option in enumerate(run.space.chain(own)):
                yield run, position, option


def read_blocks(path: Path, students: Sequence[Space | nn.Module]) -> tuple[Run, ...]:
    """Return the runs of student blocks below a run directory."""
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
"""Number of steps that a teacher block may be ahead of the consumers of its output."""


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
    """Train student block i to do what the teacher's block i does with the output of block i - 1.

    Every block is a separate run, with the bits of a plain loop that passes each batch through the
    teacher and then does one step of each student block. Training one block after another gives the
    same result.

    Args:
        teachers: the teacher's blocks, with their weights, in evaluation mode.
        students: for each of them a space, whose first block is called with the output of the
            preceding teacher block, or modules. The last block's output must have the shape of the
            teacher's.
        data: a pure function; ``data(seed, step)`` returns named tensors.
        steps: of each student block.
        loss: of every student block except the last; must have a method ``distill(output,
            taught)``. By default the mean squared difference.
        last_loss: of the last block; by default cross entropy against the teacher's softmax.
        stages: stage processes. ``execution={"partition": ...}`` selects which of them runs which
            block: ``free`` (the default), ``pairs``, ``packed``, ``layers`` or ``hybrid``.
        seed: of the data; block i uses ``seed + i`` for its parameters, its paths and its draws.
        sampler: of every block's paths; ``recipe``, ``execution``, ``resume``, ``observer`` and
            ``optimizer`` (with ``lr`` and ``optimizer_options``) as for :func:`naspipe.train`.
        relay: ``decoupled``; for comparison ``barrier`` or ``apart``, see
            :data:`naspipe.distill.blockwise.RELAYS`. Does not change any bit. A ``relay`` in
            ``execution`` takes precedence.
        window: number of steps that a teacher block may be ahead of the consumers of its output; or
            ``execution={"teacher_window": passes}``.
        run_dir: the parent of ``block-0``, ... and ``teacher-0``, ...
        source: the arguments of a command line, for the manifests.

    Raises:
        ConfigError: if the input cannot be used; in that case nothing has been written.
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
    carry_out: Callable[[Training], None] | None = None,
) -> Training:
    """Train the result of :func:`blockwise_streams`; see :func:`naspipe.api.training.start`.

    The relay is one of the settings in ``execution``.
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
    """Define what :func:`distill_blockwise` trains; ``how`` goes to :func:`naspipe.workload`."""
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
