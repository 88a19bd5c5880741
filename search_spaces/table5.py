"""Costs of the spaces' layers on the paper's GPUs: NASPipe (ASPLOS'22), Table 5.

The table has eight layers: forward, backward and swap-in times on an RTX 2080 Ti over PCIe 3.0, for
the inputs (192, 1024) of text and (64, 112, 112) of images. Here each candidate gets the nearest
row. Values that the table omits are assumed, and described with their constants.
"""

from __future__ import annotations

from typing import NamedTuple

import search_spaces
from naspipe.config.blocks import Block, Shared
from naspipe.config.errors import ConfigError
from naspipe.config.ids import LayerId
from naspipe.config.space import Space
from naspipe.plan.costs import CostTable, LayerCost, LayerSize, SizeTable, first_of_kind
from naspipe.plan.virtual_costs import TableCosts


class Row(NamedTuple):
    """One line of the table, in milliseconds."""

    forward_ms: float
    backward_ms: float
    """Without the recomputation of the forward."""
    swap_ms: float
    """Host to device; the other direction, which the table omits, is assumed to be equal."""


ROWS = {
    "conv 3x1": Row(5.0, 10.0, 1.76),
    "separable 7x1": Row(4.2, 5.7, 0.56),
    "light 5x1": Row(0.68, 1.4, 0.03),
    "attention 8": Row(7.9, 13.8, 2.07),
    "conv 3x3": Row(7.9, 13.8, 4.6),
    "separable 3x3": Row(2.8, 4.0, 0.68),
    "separable 5x5": Row(6.7, 9.9, 2.04),
    "dilated 3x3": Row(2.5, 3.4, 0.58),
}
"""The rows of the table."""

ASSUMED_ROWS = {
    "identity": Row(0.1, 0.1, 0.0),
    "pool": Row(1.0, 1.0, 0.0),
    "embedding": Row(0.68, 1.4, 1.76),
    "norm": Row(0.1, 0.1, 0.0),
    "stem": Row(2.8, 4.0, 0.68),
    "head": Row(5.0, 10.0, 1.76),
}
"""Assumed rows for layers that the table omits: those without parameters, and the shared ones."""

BYTES_PER_NS = 12.0
"""PCIe 3.0 x16: a layer's size is its swap-in time multiplied by this rate."""

_TEXT = {
    "conv": "conv 3x1", "separable": "separable 7x1", "light": "light 5x1",
    "attention": "attention 8", "glu": "conv 3x1",
}  # fmt: skip
_IMAGES = {
    "conv": "conv 3x3", "separable 3x3": "separable 3x3", "separable": "separable 5x5",
    "dilated separable": "dilated 3x3", "identity": "identity", "average pool": "pool",
    "max pool": "pool",
}  # fmt: skip
_SHARED = {
    "source_embedding": "embedding", "target_embedding": "embedding", "final_norm": "norm",
    "stem": "stem", "head": "head",
}  # fmt: skip


def table5_rows(space: Space) -> list[tuple[Row, ...]]:
    """Return, for each block of the chain, the row of each of its candidates.

    Raises:
        ConfigError: unless the space has the name and the candidates of one that comes with
            naspipe.
    """
    names = search_spaces.candidate_names(space.name)
    kinds = _TEXT if space.name.startswith("nlp") else _IMAGES
    rows = tuple(_find(kinds[_longest_start(name, kinds)]) for name in names)
    result: list[tuple[Row, ...]] = []
    for block, label in zip(space.blocks, space.labels, strict=True):
        if isinstance(block, Shared) and block.name in _SHARED:
            result.append((_find(_SHARED[block.name]),))
        elif isinstance(block, Block) and len(block.candidates) == len(rows):
            result.append(rows)
        else:
            raise ConfigError(
                f"space {space.name}, block {label}: expected {len(rows)} candidates or one of "
                f"the shared layers {', '.join(_SHARED)}; found {len(block.candidates)} candidates"
            )
    return result


def table5_costs(space: Space, recompute: bool = True, link_ns: int = 0) -> TableCosts:
    """Return the costs of every layer; its ``table`` is the input of partitions and priorities.

    A backward includes the forward that it recomputes, unless ``recompute`` is False. A WRITE takes
    no time and a copy moves only the parameters, once in each direction: the table has neither
    optimizer steps nor buffers, so this is plain SGD on layers without buffers. Half of a backward
    counts as that of the weights.

    Args:
        space: a space made by :func:`search_spaces.build`, with or without its shared layers.
        recompute: recompute each forward in its backward, as in the paper.
        link_ns: time of each message between stages.

    Raises:
        ConfigError: as :func:`table5_rows`.
    """
    sizes = table5_sizes(space)

    def state_bytes(layer: LayerId) -> int:
        return sizes.of(layer.block, layer.candidate).state_bytes

    costs: dict[tuple[int, int], LayerCost] = {}
    for block, rows in enumerate(table5_rows(space)):
        for candidate, row in enumerate(rows):
            backward_ms = row.backward_ms + (row.forward_ms if recompute else 0.0)
            weights_ns = _ns(row.backward_ms) // 2
            costs[block, candidate] = LayerCost(
                _ns(row.forward_ms), _ns(backward_ms), 0,
                inputs_ns=_ns(backward_ms) - weights_ns, weights_ns=weights_ns,
            )  # fmt: skip
    return TableCosts(
        table=CostTable(costs),
        link_ns=link_ns,
        state_bytes=state_bytes,
        bytes_per_ns=BYTES_PER_NS,
    )


def table5_sizes(space: Space) -> SizeTable:
    """Return the bytes of every layer's parameters, from its swap-in time; no state or buffers.

    Raises:
        ConfigError: as :func:`table5_rows`.
    """
    twins = first_of_kind(space)
    return SizeTable(
        twins,
        {
            block: tuple(_size(row) for row in rows)
            for block, rows in enumerate(table5_rows(space))
            if twins[block] == block
        },
    )


def without_shared(space: Space) -> Space:
    """Return only the choice blocks, as in the paper's artifact, whose shared layers are frozen."""
    return Space(space.name, [block for block in space.blocks if isinstance(block, Block)])


def _size(row: Row) -> LayerSize:
    parameter_bytes = round(_ns(row.swap_ms) * BYTES_PER_NS)
    return LayerSize(parameter_bytes, parameter_bytes, False)


def _ns(milliseconds: float) -> int:
    return round(milliseconds * 1e6)


def _find(name: str) -> Row:
    return ROWS[name] if name in ROWS else ASSUMED_ROWS[name]


def _longest_start(name: str, kinds: dict[str, str]) -> str:
    """Return the longest kind with which a candidate's name begins; every candidate has one."""
    return max((kind for kind in kinds if name.startswith(kind)), key=len)
