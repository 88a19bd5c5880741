"""What a teacher must answer before it is asked: batches whose labels are known.

Two processes of one numeric class leave the same bits, as far as anybody can say. So each teacher
is asked for batches of every shape that occurs, and its labels must have the bits that the
student's own process made of the same weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import torch

from naspipe.runtime.jobs.workload import Workload
from naspipe.runtime.labels.label_network import LabelNetwork, check_draws, label_digest

Shapes = tuple[tuple[int, ...], ...]

LOOKED_AT = 64
"""Batches, from the first, among which shapes are looked for; and the last one."""


@dataclass(frozen=True, slots=True)
class Exam:
    """Batches, and the digests of their labels."""

    digests: dict[int, str]
    dtype: torch.dtype
    trailing: tuple[int | None, ...]
    """Sizes of a label behind its first; None for one that is not the same in all batches."""
    shapes: Mapping[Shapes, torch.Size]
    """Of a label, by the shapes of what the teacher takes of its batch."""
    fields: Mapping[int, Shapes]
    """Of what the teacher takes of each batch of the exam."""

    def is_right(self, number: int, label: torch.Tensor) -> bool:
        """Whether a label of one of the batches has the right bits."""
        return self.digests.get(number) == label_digest(label)

    def misfit(self, label: torch.Tensor) -> str:
        """Why no label can look so; empty where it may."""
        if label.dtype == self.dtype and label.dim() == 1 + len(self.trailing):
            pairs = zip(label.shape[1:], self.trailing, strict=True)
            if all(expected in (None, found) for found, expected in pairs):
                return ""
        return (
            f"expected labels of {self.dtype} and {self.trailing} a sample, found {label.dtype} "
            f"and {tuple(label.shape[1:])}"
        )

    def has_shape(self, label: torch.Tensor) -> bool:
        """Whether a label of the exam had this shape."""
        return label.shape in self.shapes.values()

    def shape_problem(self, number: int, label: torch.Tensor, taken: Shapes) -> str:
        """Why the label of a batch cannot have this shape; empty where it may.

        Args:
            number: of the batch.
            label: its label.
            taken: shapes of what the teacher takes of the batch.
        """
        expected = self.shapes.get(taken, label.shape)
        if expected == label.shape:
            return ""
        return (
            f"expected a label of {tuple(expected)} for batch {number}, found {tuple(label.shape)}"
        )


def make_exam(teacher: Workload, device: str, batches: Sequence[int]) -> Exam:
    """Compute the labels of one batch of every shape.

    Args:
        teacher: its network.
        device: where this process computes.
        batches: that a student will ask for, in order.

    Raises:
        ConfigError: when they cannot be computed.
    """
    network = LabelNetwork.of(teacher, device)
    digests: dict[int, str] = {}
    found: dict[Shapes, torch.Size] = {}
    taken: dict[int, Shapes] = {}
    for number in (*batches[:LOOKED_AT], *batches[-1:]):
        fields = network.fields(number)
        shapes = shapes_of(chain.from_iterable(fields))
        if shapes not in found:
            label = network.label_of(number, fields).cpu()
            found[shapes] = label.shape
            digests[number], taken[number] = label_digest(label), shapes
            check_draws(network, number, fields)
    sizes = (set(each) for each in zip(*(shape[1:] for shape in found.values()), strict=True))
    trailing = tuple(each.pop() if len(each) == 1 else None for each in sizes)
    return Exam(digests, label.dtype, trailing, found, taken)


def shapes_of(fields: Iterable[torch.Tensor]) -> Shapes:
    """Of what a teacher takes of a batch."""
    return tuple(tuple(each.shape) for each in fields)
