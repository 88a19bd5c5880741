"""Spaces whose layers are mixed edges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import nn

from naspipe.config.blocks import Block
from naspipe.config.errors import ConfigError
from naspipe.config.space import Space
from naspipe.mixed.architecture import FIELD
from naspipe.mixed.edges import MixedEdge, PairEdge

Layers = Sequence[Callable[[], nn.Module] | Sequence[Callable[[], nn.Module]]]
"""Of each layer of a chain a factory, or those of its candidates."""


def candidates_of(layers: Layers) -> list[Sequence[Callable[[], nn.Module]]]:
    return [[each] if callable(each) else each for each in layers]


@torch.no_grad()
def operations(layers: Layers, example: torch.Tensor) -> list[list[float]]:
    """Count the products in one sample's forward, for each candidate of each layer.

    Counted are matrix products and convolutions, as torch's counter does, two of whose operations
    are one product. Candidates are computed on torch's meta device; each layer is given what the
    first candidate of the one before returns.

    Args:
        layers: as of :func:`naspipe.mixed.student`.
        example: of the shape that the first one is given; the first dimension counts samples.
    """
    from torch.utils.flop_counter import FlopCounterMode  # which prints tables: needs more

    table: list[list[float]] = []
    state = example.to("meta")
    for factories in candidates_of(layers):
        row, outputs = [], []
        for factory in factories:
            with torch.random.fork_rng(devices=[]):
                module = factory().to("meta").eval()
            counter = FlopCounterMode(display=False)
            with torch.device("meta"), counter:
                outputs.append(module(state))
            row.append(counter.get_total_flops() / 2 / max(1, len(state)))
        table.append(row)
        state = outputs[0]
    return table


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
    """Make a chain of mixed edges, each a block of the space with one candidate: itself.

    Args:
        name: how runs call it.
        layers: the candidates of each, as factories; a factory alone is a layer without a choice.
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
