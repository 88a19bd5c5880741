"""Spaces whose layers are mixed edges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from torch import nn

from naspipe.config.errors import ConfigError
from naspipe.config.space import Block, Space
from naspipe.mixed.mixed_edge import MixedEdge
from naspipe.mixed.operations import Layers, candidates_of
from naspipe.mixed.pair_edge import PairEdge
from naspipe.mixed.rounds import FIELD

FULL, PAIR = "full", "pair"
EDGES = {FULL: MixedEdge, PAIR: PairEdge}
"""Layers by what their architecture rounds run."""


def student(
    name: str,
    layers: Layers,
    *,
    operations: Sequence[Sequence[float]] | None = None,
    reference: float | None = None,
    gates: str = FULL,
) -> Space:
    """A chain of mixed edges, each a block of the space with one candidate: itself.

    Args:
        name: how runs call it.
        layers: of each its candidates, as factories; a factory alone is a layer without a choice.
        operations: of each candidate of each layer, for :class:`naspipe.losses.CostTerm`.
        reference: what the chain is to be compared with, such as the teacher's operations.
        gates: which candidates an architecture round runs: ``full`` for all of them, ``pair`` for
            two that are sampled.

    Raises:
        ConfigError: for a reference without a table, or a table that does not fit, or other gates.
    """
    if gates not in EDGES:
        raise ConfigError(
            f"student {name}: expected gates {' or '.join(EDGES)}, found {gates!r:.80}"
        )
    found = candidates_of(layers)
    if (operations is None) != (reference is None):
        here, missing = ("operations", "reference") if operations else ("reference", "operations")
        raise ConfigError(
            f"student {name}: expected a table of operations and a reference, or neither, found "
            f"{here} without {missing}; naspipe.mixed.operations makes a table"
        )
    table = [None] * len(found) if operations is None else [tuple(row) for row in operations]
    if [len(row) for row in table if row is not None] not in ([], [len(each) for each in found]):
        raise ConfigError(
            f"student {name}: expected a table of operations for layers with "
            f"{_listed(found)} candidates, found rows of {_listed(operations or ())}"
        )
    last = len(found) - 1
    makers = [
        partial(_edge, EDGES[gates], tuple(factories), row, reference if number == last else None)
        for number, (factories, row) in enumerate(zip(found, table, strict=True))
    ]
    fields = [("input", FIELD), *[(FIELD,)] * last]
    return Space(name, [Block([m], fields=f) for m, f in zip(makers, fields, strict=True)])


def _edge(
    kind: type[MixedEdge],
    factories: Sequence[Callable[[], nn.Module]],
    operations: Sequence[float] | None,
    reference: float | None,
) -> MixedEdge:
    return kind([make() for make in factories], operations, reference)


def _listed(rows: Sequence[Sequence[object]]) -> str:
    return ", ".join(str(len(row)) for row in rows) or "none"
