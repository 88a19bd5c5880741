"""Bytes of every layer, as its stage's device holds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple


class LayerSize(NamedTuple):
    """What one layer takes on the device; each tensor at a multiple of 512 bytes."""

    state_bytes: int
    """Parameters, buffers and optimizer state: all that is there while the layer is resident."""
    parameter_bytes: int
    """The parameters alone."""
    writes_forward: bool
    """Whether a forward may change the layer. It has buffers, such as the running statistics of
    a normalisation; which of them a forward writes is not asked."""


@dataclass(frozen=True, slots=True)
class SizeTable:
    """Sizes of every layer of a space, exact; blocks of one kind share their rows."""

    twins: tuple[int, ...]
    """See :func:`naspipe.planning.cost.first_of_kind`."""
    rows: Mapping[int, tuple[LayerSize, ...]]
    """By the first block of each kind: one size per candidate."""

    def of(self, block: int, candidate: int) -> LayerSize:
        """A layer's size."""
        return self.rows[self.twins[block]][candidate]
