"""A frozen teacher: a network that only runs forward, and whose output the student learns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from naspipe.config.blocks import Block, CopyOf, LossBlock
from naspipe.config.errors import ConfigError
from naspipe.config.ids import StreamId
from naspipe.config.rules import TEACHER_MODES, Frozen
from naspipe.config.space import Space
from naspipe.config.text import knows_keywords
from naspipe.config.user_code import users_code
from naspipe.config.wiring import Tap, TapRole
from naspipe.data.views import Views
from naspipe.distill.distillation import Distillation, only_student
from naspipe.inputs.ends import modules_digest, teacher_chain
from naspipe.inputs.run import Run
from naspipe.jobs.losses import wants_hidden
from naspipe.jobs.workload import Workload
from naspipe.losses.top_target import KeepsTop
from naspipe.machine.determinism import kept_draws
from naspipe.machine.staging import tensor_bytes


class InTurn(nn.Module):
    """Modules in sequence; unlike ``torch.nn.Sequential`` it passes a tuple on as arguments."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(modules)

    def forward(self, *inputs: torch.Tensor) -> Any:
        state: Any = inputs
        for part in self.parts:
            state = part(*state) if isinstance(state, tuple) else part(state)
        return state


@torch.no_grad()
def check_teaching(blocks: Sequence[nn.Module], inputs: torch.Tensor) -> None:
    """Check that the blocks of a teacher, in evaluation mode, change neither inputs nor themselves.

    Students are called with the same tensors, and repeated forwards must give the same result.

    Args:
        blocks: the blocks in order.
        inputs: inputs of the first block.

    Raises:
        ConfigError: naming the block that changes one of them.
    """
    state: tuple[torch.Tensor, ...] = (inputs,)
    for number, block in enumerate(blocks):
        given = tuple(each.clone() for each in state)
        before = {name: each.clone() for name, each in _kept(block)}
        what = f"blockwise: expected block {number} of the teacher to take"
        what += " the output of the block before it, found" if number else " a batch, found"
        with users_code(what), kept_draws():
            result = block(*given)
        for found, original in zip(given, state, strict=True):
            if not torch.equal(_bytes(found), _bytes(original)):
                raise ConfigError(
                    f"blockwise: expected block {number} of the teacher to leave its input as it "
                    f"is, as a student is called with it, too, found it changed in place; use the "
                    f"out-of-place operation (for example inplace=False)"
                )
        for name, after in _kept(block):
            if name not in before or not torch.equal(_bytes(after), _bytes(before[name])):
                raise ConfigError(
                    f"blockwise: expected block {number} of the teacher to stay as it is in "
                    f"evaluation mode, found that a forward changes {name}; leave that out"
                )
        state = result if isinstance(result, tuple) else (result,)


def _kept(block: nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [*block.named_parameters(), *block.named_buffers()]


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes, so that NaN equals itself."""
    return tensor_bytes(tensor.detach().cpu())


Pairs = tuple[tuple[int, int], ...]
"""Pairs of a teacher's pass and the student's pass that learns from it."""


def crossed(views: int, passes: int) -> Pairs | None:
    """Pair each view with the next one; None for one view, which learns from itself."""
    if views == 1:
        return None
    batches = passes // views
    return tuple(((number + batches) % passes, number) for number in range(passes))


def pass_pairs(student: Workload, are_crossed: bool) -> Pairs | None:
    """Return which teacher pass each student pass learns from; None if always the same pass.

    Local views, which the teacher does not process, learn from the first view.

    Args:
        student: its data may be :class:`naspipe.Views`.
        are_crossed: True if each view learns from another one.

    Raises:
        ConfigError: if the passes of its steps are not the views of the batches.
    """
    data, passes = student.data, student.recipe.steps.passes
    if not isinstance(data, Views) or not (are_crossed or data.local):
        return None
    if data.passes != passes:
        local = f" and {data.local} local ones" if data.local else ""
        raise ConfigError(
            f"views: expected passes=accumulate:{data.passes}, for {data.views} views{local} of "
            f"{data.batches} micro-batches, found {student.recipe.passes}"
        )
    count = data.views * data.batches
    pairs = crossed(data.views, count) if are_crossed else None
    if not data.local:
        return pairs
    pairs = pairs or tuple((number, number) for number in range(count))
    more = range(count, count + data.local * data.batches)
    return (*pairs, *((number % count, number) for number in more))


WINDOW = 16
"""Number of passes that a teacher may run ahead by default."""


@knows_keywords
class Teacher:
    """A network with its weights, in evaluation mode, that is not trained.

    It is cut into blocks and runs on the student's stages while they are idle. It processes the
    student's batches. The output of its last block is passed to the ``distill`` method of the
    student's loss.

    Args:
        network: modules in order, as :func:`naspipe.chain` takes them, with their present weights;
            an exported subnet, as returned by its ``load()``; or a run whose space has one subnet,
            or from which ``choices`` select one.
        choices: choices within a run's supernet, one per choice block.
        ema: use the moving averages of a run's weights.
        window: number of passes that it may run ahead.
        mode: ``eval``; or ``train``, in which norms use the statistics of their batch. Running
            statistics do not change in either mode.
        joint_cuts: cut it where the student is cut, block by block; otherwise the two are balanced
            separately. This changes no bit of the result.
        weights: a safetensors file for modules, with the names of ``Sequential(*modules)``.
        top: output only this number of greatest scores of the last dimension, with their classes,
            for losses such as :class:`naspipe.losses.TopTarget`; 0 for all. In the definition of a
            run this is a different teacher from one with all scores.

    Raises:
        ConfigError: for anything else, a layer that the run never trained, or weights that are not
            finite.
    """

    def __init__(
        self,
        network: Run | nn.Module | Iterable[nn.Module],
        choices: Sequence[int] | None = None,
        *,
        ema: bool = False,
        window: int = WINDOW,
        mode: str = "eval",
        joint_cuts: bool = False,
        weights: str | Path | None = None,
        top: int = 0,
    ) -> None:
        if isinstance(network, Run):
            if weights is not None:
                raise ConfigError("teacher: expected a file of weights for modules, found a run")
            self.space = _of_run(network, choices, ema)
        elif choices is not None or ema:
            raise ConfigError("teacher: expected choices and ema of a run only, found modules")
        elif hasattr(network, "layer_inputs"):
            exported: Any = network
            layers = zip(exported.children(), exported.layer_inputs, strict=True)
            blocks = [Block([CopyOf(layer)], fields=names) for layer, names in layers]
            self.space = _frozen(Space("teacher", blocks))
        else:
            if weights is not None:
                network = _filled(network, Path(weights))
            self.space = _frozen(teacher_chain(network))
        if window < 1:
            raise ConfigError(f"teacher: expected a window of 1 pass or more, found {window}")
        if mode not in TEACHER_MODES:
            raise ConfigError(
                f"teacher: expected mode {' or '.join(TEACHER_MODES)}, found {mode!r:.80}"
            )
        if top < 0:
            raise ConfigError(f"teacher: expected top of 0 classes or more, found {top}")
        self.window, self.mode, self._joint_cuts, self._top = window, mode, joint_cuts, top
        self.digest = weights_digest(self.space) + ("" if mode == "eval" else f"/{mode}")
        for position, block in enumerate(self.space.blocks):
            for name, value in block.candidates[0]().state_dict().items():
                if value.is_floating_point() and not value.isfinite().all():
                    raise ConfigError(
                        f"teacher: expected finite weights, found others in {name} of block "
                        f"{position}"
                    )
        if top:
            self.digest += f"/top:{top}"
            self.space = _with_last(self.space, lambda block: KeepsTop(block, top))

    def blocks(self, cuts: Sequence[int]) -> list[nn.Module]:
        """Divide its layers into modules, for :func:`naspipe.distill_blockwise`.

        Args:
            cuts: positions in its chain at which the second, third, ... module begins, as in
                ``search_spaces.cuts("mobilenet-v2")``.

        Raises:
            ConfigError: for cuts outside of the chain, or a teacher that takes more from a batch
                than the ``input`` of its first layer, or is not in evaluation mode.
        """
        if self.mode != "eval":
            raise ConfigError(
                f"teacher: expected mode eval of one whose blocks each teach a student, as no "
                f"order of its forwards may reach a result, found mode {self.mode}"
            )
        if self._top:
            raise ConfigError(f"teacher: expected blocks of all scores, found top={self._top}")
        parts = Space("teacher", self.space.blocks).cut(cuts)
        for position in range(len(self.space)):
            fields = self.space.fields(position)
            if fields != (("input",) if not position else ()):
                raise ConfigError(
                    f"teacher: expected only its first layer to take a batch field, "
                    f"input, found {', '.join(fields) or 'none'} at layer {position}"
                )
        return [InTurn([block.candidates[0]() for block in part.blocks]) for part in parts]

    def beside(self, students: Sequence[Workload]) -> Distillation:
        student = only_student(students)
        if bool(self._top) != bool(getattr(student.loss, "takes_top", False)):
            expected = "TopTarget, as for top=K" if self._top else "a teacher with top=K"
            raise ConfigError(
                f"teacher: expected {expected}, found a loss {type(student.loss).__name__} and "
                f"top={self._top}"
            )
        is_seen = wants_hidden(student.loss)
        space = _with_last(self.space, _WithHidden) if is_seen else self.space
        own = replace(student.definition, teacher=self.digest)
        definition = replace(
            student.definition,
            space=space.name,
            sampler="uniform",
            rules={},
            teacher="",
            weights=self.digest,
        )
        teacher = replace(
            student,
            space=space,
            definition=definition,
            make_strategy=None,
            held_out=None,
            is_trained=False,
            rank=1,
            window=self.window,
            in_training_mode=self.mode == "train",
            cut_like=0 if self._joint_cuts else None,
            objectives={},
            field_sources={},
        )
        tap = Tap(
            source=(StreamId(1), len(space) - 1),
            sink=(StreamId(0), len(student.space) - 1),
            role=TapRole.LESSON,
            passes=pass_pairs(student, are_crossed=False),
        )
        return Distillation((replace(student, definition=own), teacher), (tap,), ("", "teacher"))


def _of_run(run: Run, choices: Sequence[int] | None, ema: bool) -> Space:
    space = run.space
    if choices is None:
        if any(count > 1 for count in space.candidate_counts):
            raise ConfigError(
                f"teacher: expected choices of one subnet of {space.name}, one per choice block, "
                f"found none"
            )
        choices = [0] * len(space.candidate_counts)
    subnet, blocks = space.chain(tuple(choices)), []
    for position, option in enumerate(subnet):
        if isinstance(space.blocks[position], LossBlock):
            break
        with users_code(
            f"teacher: expected the weights of {space.name} in the run {run.directory.path}, found"
        ):
            module = run.chosen(position, option, ema=ema)
        blocks.append(Block([CopyOf(module)], fields=space.fields(position)))
    return _frozen(Space(f"{space.name}:{'.'.join(map(str, choices)) or 'all'}", blocks))


def _filled(modules: Iterable[nn.Module], path: Path) -> nn.Sequential:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    found = deepcopy(nn.Sequential(*modules))
    try:
        found.load_state_dict(load_file(path))
    except (OSError, SafetensorError, RuntimeError) as error:
        problem = " ".join(str(error).split())
        raise ConfigError(
            f"teacher: expected the weights of its modules in {path}, found {problem:.200}"
        ) from error
    return found


def _frozen(space: Space) -> Space:
    return Space(space.name, [replace(block, rule=Frozen()) for block in space.blocks])


class _WithHidden(nn.Module):
    """A last block that returns its first input after its outputs."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        outputs = self.block(*inputs)
        return (*(outputs if isinstance(outputs, tuple) else (outputs,)), inputs[0])


def _with_last(space: Space, wrap: Callable[[nn.Module], nn.Module]) -> Space:
    *blocks, last = space.blocks
    (factory,) = last.candidates
    wrapped = Block([lambda: wrap(factory())], fields=last.fields, rule=Frozen())
    return Space(space.name, [*blocks, wrapped])


def weights_digest(space: Space) -> str:
    """Return a digest of every parameter and buffer, by block and name."""
    return modules_digest(block.candidates[0]() for block in space.blocks)
