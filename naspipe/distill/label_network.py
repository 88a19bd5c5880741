"""A frozen teacher as a function from the number of a batch to its label.

A label is what a teacher that is a stream of the pipeline passes to the loss: the output of its
forward in evaluation mode for the student's batch, one pass of ``accumulate:S`` at a time, with the
same random draws. The unit is the batch, which is never split, joined or padded.
"""

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
"""(teacher, number of a batch, fields of each block) -> output of the last block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelNetwork:
    """A teacher that is ready to compute labels."""

    workload: Workload
    """The teacher's workload, with the data and the seed of the student."""
    forward: Forward
    """Runs its layers, in this process or elsewhere."""
    device: torch.device
    """Device on which its inputs are placed."""

    @classmethod
    def of(cls, workload: Workload, device: str = "cpu") -> LabelNetwork:
        """Create all layers of a teacher in this process; its space has one candidate per block."""
        where = torch.device(device)
        modules = [block.candidates[0]().eval().to(where) for block in workload.space.blocks]

        def forward(teacher: Workload, number: int, fields: list[Tensors]) -> Tensors:
            state: Tensors = ()
            for block, module in enumerate(modules):
                state = run_block(teacher, block, module, number, fields[block], state)
            return state

        return cls(workload=workload, forward=forward, device=where)

    def label(self, number: int) -> torch.Tensor:
        """Compute the label of a batch; the number of a batch is that of its pass.

        Raises:
            ConfigError: if the batch lacks a field that the teacher takes, or if the last block of
                the teacher returns several tensors.
        """
        return self.label_of(number, self.fields(number))

    def fields(self, number: int) -> list[Tensors]:
        space, definition = self.workload.space, self.workload.definition
        batch = self.workload.data(definition.seed, number)
        return [
            tuple(field_of(batch, name, number).to(self.device) for name in space.fields(block))
            for block in range(len(space))
        ]

    def split(self, fields: Tensors) -> list[Tensors]:
        """Divide a flat list of fields among the blocks.

        Raises:
            ConfigError: if their number is wrong.
        """
        space = self.workload.space
        counts = [len(space.fields(block)) for block in range(len(space))]
        if len(fields) != sum(counts):
            raise ConfigError(f"labels: expected the teacher's fields, found {len(fields)}")
        rest = iter(fields)
        return [tuple(next(rest).to(self.device) for _ in range(count)) for count in counts]

    def label_of(self, number: int, fields: list[Tensors]) -> torch.Tensor:
        state = self.forward(self.workload, number, fields)
        if len(state) != 1:
            raise ConfigError(
                f"labels: expected a teacher whose last block returns one tensor, found "
                f"{len(state)}; use labels=pipeline"
            )
        return state[0]


def run_block(
    workload: Workload,
    block: int,
    module: nn.Module,
    number: int,
    fields: Tensors,
    state: Tensors,
) -> Tensors:
    """Run the forward of one block of a teacher on its fields and the output of the previous block.

    ``block`` is its position in the chain, ``module`` is its layer on the device of the inputs, and
    ``number`` is the number of the batch.
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
    """Return the fields that a teacher takes from a batch, block by block, as a flat list.

    Raises:
        ConfigError: if the batch lacks one of the fields.
    """
    space = workload.space
    batch = workload.data(workload.definition.seed, number)
    names = chain.from_iterable(space.fields(block) for block in range(len(space)))
    return [field_of(batch, name, number) for name in names]


def check_draws(network: LabelNetwork, number: int, fields: list[Tensors]) -> torch.Tensor:
    """Return the label of a batch after checking that it does not depend on the step and the pass.

    Raises:
        ConfigError: if a layer has drawn random numbers.
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
    """Return a digest of a label's dtype, shape, strides and bytes."""
    name, sizes, strides, *_ = describe(label)
    _, raw = encode(label)
    described = f"{name}/{list(sizes)}/{list(strides)}/".encode()
    return hashlib.blake2b(described + bytes(raw), digest_size=16).hexdigest()
