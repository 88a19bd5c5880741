"""Per layer: its access order as ``naspipe log`` prints it, and the causal waits it caused."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from naspipe.config.ids import Access, AccessKind, LayerId
from naspipe.report.reasons import Reason
from naspipe.report.reduction_tables import REDUCING
from naspipe.report.waits import Wait
from naspipe.trace.access.labels import SpaceLabels
from naspipe.trace.access.order import format_order, layer_order, reads_and_writes, with_settings


class LayerOrder(NamedTuple):
    """One layer; ``causal_ns`` sums the waits of stages for one of its WRITEs.

    ``reduction_ns`` sums those for what groups send one another: its gradients, copies, buffers.
    """

    layer: LayerId
    label: str
    rule: str
    reads: int
    writes: int
    order: str
    causal_ns: int
    causal_waits: int
    reduction_ns: int


def layer_orders(
    accesses: Sequence[Access],
    waits: Iterable[Wait],
    labels: SpaceLabels,
    stream: Sequence[Sequence[int]] = (),
) -> list[LayerOrder]:
    """Every layer that was used, in chain order; orders say settings where a stream is given."""
    waited: dict[LayerId, list[int]] = defaultdict(list)
    reduced: dict[LayerId, int] = defaultdict(int)
    for wait in waits:
        if wait.reason is Reason.CAUSAL and wait.cause is not None:
            waited[wait.cause.layer].append(wait.end_ns - wait.start_ns)
        if wait.reason in REDUCING and wait.cause is not None:
            reduced[wait.cause.layer] += wait.end_ns - wait.start_ns
    rows = []
    for layer, records in reads_and_writes(accesses).items():
        writes = sum(access.kind is AccessKind.WRITE for access in records)
        order = format_order(layer_order(records))
        rows.append(
            LayerOrder(
                layer=layer,
                label=labels.full_label(layer),
                rule=labels.rule_text(layer),
                reads=len(records) - writes,
                writes=writes,
                order=with_settings(order, labels.settings(layer, stream)) if stream else order,
                causal_ns=sum(waited[layer]),
                causal_waits=len(waited[layer]),
                reduction_ns=reduced[layer],
            )
        )
    return rows
