"""How the gradients of a step's passes are added up: in a chain, or in a balanced tree.

Four passes::

    fold   ((g0 + g1) + g2) + g3
    tree   (g0 + g1) + (g2 + g3)

Either is one fixed expression over the passes, whoever computed them. Floats are added in no other
order, so the sum has the same bits on any number of groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from naspipe.runtime.layers.bound_layer import Gradients
from naspipe.runtime.layers.norm_statistics import Statistics

Part = tuple[int, int]
"""Of which passes something is the sum: the first one's number in its step, and how many."""


class GradientSum(NamedTuple):
    """Of some passes of a step, on their way to another group."""

    parts: Mapping[Part, Gradients]
    num_passes: int
    statistics: Mapping[int, Statistics]
    """Of batch normalisation, by the number of the pass in its step."""
    options: frozenset[int] = frozenset()
    """By which the passes used the layer."""


class Fold:
    """Each pass behind the ones before it, as autograd adds them up.

    What comes from another group comes first, so it is the only thing here when it comes.

    Args:
        passes: of a step.
    """

    def __init__(self, passes: int) -> None:
        self._passes = passes
        self._sum: Gradients | None = None

    def add(self, number: int, gradients: Gradients) -> None:
        """See :class:`naspipe.runtime.blocks.ports.PassSum`."""
        self._sum = gradients if self._sum is None else _plus(self._sum, gradients)

    def join(self, parts: Mapping[Part, Gradients]) -> None:
        """See :class:`naspipe.runtime.blocks.ports.PassSum`."""
        for (first, _), gradients in parts.items():
            self.add(first, gradients)

    @property
    def parts(self) -> dict[Part, Gradients]:
        """See :class:`naspipe.runtime.blocks.ports.PassSum`."""
        return {} if self._sum is None else {(0, self._passes): self._sum}

    def total(self) -> Gradients:
        """See :class:`naspipe.runtime.blocks.ports.PassSum`."""
        return self._sum or {}


class Tree:
    """Halves of halves: each half of a step is added up for itself, then both.

    A pass that does not use the layer, or leaves a parameter without a gradient, is left out: then
    the other half stands for both. Halves are joined as soon as both are there.

    Args:
        passes: of a step, a power of two.
    """

    def __init__(self, passes: int) -> None:
        self._passes = passes
        self._parts: dict[Part, Gradients] = {}

    def add(self, number: int, gradients: Gradients) -> None:
        """See :class:`naspipe.runtime.blocks.ports.PassSum`."""
        self._put((number, 1), gradients)

    def join(self, parts: Mapping[Part, Gradients]) -> None:
        """See :class:`naspipe.runtime.blocks.ports.PassSum`."""
        for part, gradients in parts.items():
            self._put(part, gradients)

    @property
    def parts(self) -> dict[Part, Gradients]:
        """See :class:`naspipe.runtime.blocks.ports.PassSum`."""
        return dict(self._parts)

    def total(self) -> Gradients:
        """See :class:`naspipe.runtime.blocks.ports.PassSum`."""
        total = self._under((0, self._passes)) or {}
        self._parts = {(0, self._passes): total}
        return total

    def _put(self, part: Part, gradients: Gradients) -> None:
        first, count = part
        is_right = first // count % 2 == 1
        other = (first - count if is_right else first + count, count)
        found = self._parts.pop(other, None)
        if found is None:
            self._parts[part] = gradients
        elif is_right:
            self._put((other[0], 2 * count), _plus(found, gradients))
        else:
            self._put((first, 2 * count), _plus(gradients, found))

    def _under(self, part: Part) -> Gradients | None:
        """The sum of what is there of some passes."""
        first, count = part
        if part in self._parts:
            return self._parts.pop(part)
        if count == 1:
            return None
        half = count // 2
        left, right = self._under((first, half)), self._under((first + half, half))
        if left is None or right is None:
            return left if right is None else right
        return _plus(left, right)


REDUCTIONS: dict[str, type[Fold] | type[Tree]] = {"fold": Fold, "tree": Tree}
"""By the name in the recipe; they are given the passes of a step."""


def _plus(left: Gradients, right: Gradients) -> Gradients:
    """The right ones added to the left ones in place; a parameter may have none."""
    for name, gradient in right.items():
        if name in left:
            left[name].add_(gradient)
        else:
            left[name] = gradient
    return left
