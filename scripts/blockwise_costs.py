"""What the blocks of Pipe-BD's networks cost: multiply-adds of one image, by block and layer.

The teacher's blocks are run forward; a backward counts as two forwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

WIDTHS = (24, 32, 64, 96, 160, 320)
TEACHER_LAYERS = (2, 3, 4, 3, 3, 1)
STUDENT_LAYERS = (2, 4, 4, 4, 4, 1)
KERNELS, EXPANSIONS = (3, 5, 7), (3, 6)
STEM, FIRST, MIX = 32, 16, 1280
VGG = (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512)
"""Widths of VGG-16's convolutions; 0 is a pool."""


@dataclass(frozen=True, slots=True)
class BlockCost:
    """One block of the teacher, and the student's in its place."""

    teacher: float
    """Forward."""
    student: tuple[float, ...]
    """Forward, of each layer; the mean of its candidates."""

    @property
    def total(self) -> float:
        """Of a step: the teacher's forward, the student's forward and backward."""
        return self.teacher + 3 * sum(self.student)


def nas(size: int, stem_stride: int, strides: Sequence[int], classes: int) -> list[BlockCost]:
    """MobileNetV2 teaches ProxylessNAS's space: six blocks (section V-A)."""
    side = size // stem_stride
    begin = side * side * 27 * STEM + _inverted(side, STEM, FIRST, 1, 1, 3)
    costs, before = [], FIRST
    for number, (width, stride) in enumerate(zip(WIDTHS, strides, strict=True)):
        own = _layers(side, before, width, stride, TEACHER_LAYERS[number])
        teacher = sum(_inverted(*each, 6, 3) for each in own)
        student = [
            _mean(_inverted(*each, e, k) for e in EXPANSIONS for k in KERNELS)
            for each in _layers(side, before, width, stride, STUDENT_LAYERS[number])
        ]
        side, before = -(-side // stride), width
        if number == 0:
            teacher, student = teacher + begin, [begin, *student]
        if number == len(WIDTHS) - 1:
            end = side * side * width * MIX + MIX * classes
            teacher, student = teacher + end, [*student, end]
        costs.append(BlockCost(teacher, tuple(student)))
    return costs


def vgg(size: int) -> list[BlockCost]:
    """VGG-16 teaches depthwise separable convolutions: a block for each of 13."""
    costs, side, before = [], size, 3
    for width in VGG:
        if not width:
            side //= 2
            continue
        area = side * side
        separable = area * before * 9 + area * before * width
        costs.append(BlockCost(area * before * width * 9, (separable,)))
        before = width
    return costs


def _layers(
    side: int, before: int, width: int, stride: int, count: int
) -> Iterator[tuple[int, ...]]:
    """Side of the input, width of input and output, and stride of each layer."""
    for number in range(count):
        yield (
            (side, before, width, stride) if number == 0 else (-(-side // stride), width, width, 1)
        )


def _inverted(
    side: int, before: int, width: int, stride: int, expansion: int, kernel: int
) -> float:
    """Of an inverted residual."""
    hidden, after = before * expansion, -(-side // stride)
    expand = side * side * before * hidden if expansion > 1 else 0
    return expand + after * after * hidden * (kernel * kernel + width)


def _mean(values: Iterator[float]) -> float:
    found = list(values)
    return sum(found) / len(found)


def equal(blocks: int, teacher: float = 1.0, student: float = 1.0) -> list[BlockCost]:
    """Blocks of one cost."""
    return [BlockCost(teacher, (student,))] * blocks


COSTS = {
    "NAS CIFAR-10": nas(32, 1, (1, 2, 2, 1, 2, 1), 10),
    "NAS ImageNet": nas(224, 2, (2, 2, 2, 1, 2, 1), 1000),
    "VGG-16 CIFAR-10": vgg(32),
    "VGG-16 ImageNet": vgg(224),
}
"""The paper's workloads."""
