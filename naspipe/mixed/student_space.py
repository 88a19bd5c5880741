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
"""For each layer of a chain a factory, or the factories of its candidates."""


def candidates_of(layers: Layers) -> list[Sequence[Callable[[], nn.Module]]]:
    return [[each] if callable(each) else each for each in layers]


@torch.no_grad()
def operations(layers: Layers, example: torch.Tensor) -> list[list[float]]:
    """Count the products in one sample's forward, for each candidate of each layer.

    Matrix products and convolutions are counted by torch's counter, in which one product is two
    operations. Candidates are run on torch's meta device; the input of each layer is the output of
    the previous layer's first candidate.

    Args:
        layers: as for :func:`naspipe.mixed.student`.
        example: a tensor with the shape of the first layer's input; its first dimension counts
            samples.
    """
    from torch.utils.flop_counter import FlopCounterMode  # prints tables, which needs more packages

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
"""Layer classes by the candidates that their architecture rounds run."""


def student(
    name: str,
    layers: Layers,
    *,
    operations: Sequence[Sequence[float]] | None = None,
    reference: float | None = None,
    gates: str = FULL,
) -> Space:
    """Create a chain of mixed edges, each a block of the space with one candidate: itself.

    Args:
        name: name of the space in runs.
        layers: factories of the candidates of each layer; a single factory is a layer without a
            choice.
        operations: operations of each candidate of each layer, for
            :class:`naspipe.losses.CostTerm`.
        reference: cost with which the chain is compared, such as the teacher's operations.
        gates: candidates that an architecture round runs: ``full`` for all of them, ``pair`` for
            two that are sampled.

    Raises:
        ConfigError: for a reference without a table, a table that does not fit, or other gates.
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
