"""A frozen teacher as a function: from a batch's number to its label."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain

import torch
from torch import nn

from naspipe.config.errors import ConfigError
from naspipe.config.rules import Frozen
from naspipe.jobs.workload import Workload, field_of
from naspipe.machine.determinism import block_seed
from naspipe.wire.tensor_codec import describe, encode
from naspipe.worker.blocks.forward_only import forward_only
from naspipe.worker.blocks.specs import SegmentSpec, Tensors
from naspipe.worker.layers.bound_layer import BoundLayer

Forward = Callable[[Workload, int, list[Tensors]], Tensors]
"""(teacher, number of a batch, what each block takes of it) -> what the last block hands on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelNetwork:
    """A teacher, ready to compute labels.

    A label is what a teacher that is a stream of the pipeline hands to the loss: its forward in
    evaluation mode on the student's batch, one pass of ``accumulate:S`` at a time, with the same
    draws. The unit is the batch. It is never split, joined or padded.
    """

    workload: Workload
    """Of the teacher: its data and its seed are the student's."""
    forward: Forward
    """Its layers, wherever they are."""
    device: torch.device
    """Where its fields are given to them."""

    @classmethod
    def of(cls, workload: Workload, device: str = "cpu") -> LabelNetwork:
        """Make the layers, all in this process.

        Args:
            workload: of a teacher; its space has one candidate per block.
            device: ``cpu``, ``cuda`` or ``cuda:N``.
        """
        where = torch.device(device)
        modules = (block.candidates[0]() for block in workload.space.blocks)
        local = LocalBlocks(tuple(module.eval().to(where) for module in modules))
        return cls(workload=workload, forward=local, device=where)

    def label(self, number: int) -> torch.Tensor:
        """The label of a batch.

        Args:
            number: of the batch, which is that of its pass.

        Raises:
            ConfigError: for a batch without the fields that the teacher takes, or a teacher whose
                last block returns several tensors.
        """
        return self.label_of(number, self.fields(number))

    def fields(self, number: int) -> list[Tensors]:
        """What each block takes of a batch."""
        space, definition = self.workload.space, self.workload.definition
        batch = self.workload.data(definition.seed, number)
        return [
            tuple(field_of(batch, name, number).to(self.device) for name in space.fields(block))
            for block in range(len(space))
        ]

    def split(self, fields: Tensors) -> list[Tensors]:
        """Fields that came in one row, block by block.

        Raises:
            ConfigError: when they are more or fewer.
        """
        space, rest = self.workload.space, list(fields)
        found = []
        for block in range(len(space)):
            count = len(space.fields(block))
            found.append(tuple(each.to(self.device) for each in rest[:count]))
            del rest[:count]
        if rest or any(len(f) != len(space.fields(b)) for b, f in enumerate(found)):
            raise ConfigError(f"labels: expected the teacher's fields, found {len(fields)}")
        return found

    def label_of(self, number: int, fields: list[Tensors]) -> torch.Tensor:
        """The label of a batch whose fields are given, block by block."""
        state = self.forward(self.workload, number, fields)
        if len(state) != 1:
            raise ConfigError(
                f"labels: expected a teacher whose last block returns one tensor, found "
                f"{len(state)}; use labels=pipeline"
            )
        return state[0]


@dataclass(frozen=True, slots=True)
class LocalBlocks:
    """Layers of this process, on one device."""

    modules: tuple[nn.Module, ...]

    def __call__(self, teacher: Workload, number: int, fields: list[Tensors]) -> Tensors:
        """See :data:`Forward`."""
        state: Tensors = ()
        for block, module in enumerate(self.modules):
            state = run_block(teacher, block, module, number, fields[block], state)
        return state


def run_block(
    workload: Workload,
    block: int,
    module: nn.Module,
    number: int,
    fields: Tensors,
    state: Tensors,
) -> Tensors:
    """One block of a teacher's forward; what it hands on.

    Args:
        workload: of the teacher.
        block: its position in the chain.
        module: its layer, on the device of what it is given.
        number: of the batch.
        fields: that the block takes of it.
        state: what the block before hands on.
    """
    definition = workload.definition
    steps = definition.recipe.steps
    step, in_step = steps.step(number), steps.pass_of(number)
    spec = SegmentSpec(
        label=workload.space.label(block, 0),
        rule=Frozen(),
        seed=block_seed(definition.seed, step, block, in_step, is_teacher=True),
        precision=definition.recipe.precision,
        device_type=(*state, *fields)[0].device.type,
        fields=fields,
    )
    outputs, _ = forward_only(spec, BoundLayer(module, module, {}), state)
    return outputs


def fields_of(workload: Workload, number: int) -> list[torch.Tensor]:
    """What a teacher takes of a batch, block by block, in one row.

    Raises:
        ConfigError: for a batch without one of them.
    """
    space = workload.space
    batch = workload.data(workload.definition.seed, number)
    names = chain.from_iterable(space.fields(block) for block in range(len(space)))
    return [field_of(batch, name, number) for name in names]


def check_draws(network: LabelNetwork, number: int, fields: list[Tensors]) -> torch.Tensor:
    """A label must not depend on the step and the pass that its batch is in; returns it.

    Raises:
        ConfigError: when a layer has drawn.
    """
    label = network.label_of(number, fields)
    again = network.label_of(number + 1, fields)
    if not torch.equal(label.nan_to_num(), again.nan_to_num()):
        raise ConfigError(
            "labels: expected a teacher that draws nothing in evaluation mode, found other labels "
            "with other draws; use labels=pipeline"
        )
    return label


def label_digest(label: torch.Tensor) -> str:
    """Of a label's dtype, shape, strides and bytes: equal for the same bits only."""
    name, sizes, strides, *_ = describe(label)
    _, raw = encode(label)
    said = f"{name}/{list(sizes)}/{list(strides)}/".encode()
    return hashlib.blake2b(said + bytes(raw), digest_size=16).hexdigest()
