"""What a teacher must answer before it is asked: batches whose labels are known.

Two processes of one numeric class leave the same bits, as far as anybody can say. So each teacher
is asked for batches of every shape that occurs, and its labels must have the bits that the
student's own process made of the same weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from naspipe.runtime.jobs.workload import Workload
from naspipe.runtime.labels.label_network import LabelNetwork, label_digest

LOOKED_AT = 64
"""Batches, from the first, among which shapes are looked for; and the last one."""


@dataclass(frozen=True, slots=True)
class Exam:
    """Batches, and the digests of their labels."""

    digests: dict[int, str]
    dtype: torch.dtype
    trailing: tuple[int | None, ...]
    """Sizes of a label behind its first; None for one that is not the same in all batches."""

    def is_right(self, number: int, label: torch.Tensor) -> bool:
        """Whether a label of one of the batches has the right bits."""
        return self.digests.get(number) == label_digest(label)

    def fits(self, label: torch.Tensor) -> bool:
        """Whether any label can look so: kind of numbers, classes."""
        if label.dtype != self.dtype or label.dim() != 1 + len(self.trailing):
            return False
        pairs = zip(label.shape[1:], self.trailing, strict=True)
        return all(expected is None or found == expected for found, expected in pairs)


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
    labels: list[torch.Size] = []
    seen = set()
    for number in (*batches[:LOOKED_AT], *batches[-1:]):
        fields = network.fields(number)
        shapes = tuple(tuple(each.shape) for of_block in fields for each in of_block)
        if shapes not in seen:
            seen.add(shapes)
            label = network.label_of(number, fields).cpu()
            digests[number] = label_digest(label)
            labels.append(label.shape[1:])
    sizes = (set(each) for each in zip(*labels, strict=True))
    trailing = tuple(each.pop() if len(each) == 1 else None for each in sizes)
    return Exam(digests, label.dtype, trailing)
