"""Access order: per layer, who read and who wrote, as in ``2F-2B-5F-5B-7F-7B``."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

from naspipe.core.access import Access, AccessKind
from naspipe.core.errors import LogError
from naspipe.core.ids import LayerId
from naspipe.trace.access.log import time_key

_LETTERS = {AccessKind.FORWARD: "F", AccessKind.WRITE: "B"}
Use = tuple[int, str]
"""A sequence ID and ``F`` for its READ or ``B`` for its WRITE."""


def reads_and_writes(accesses: Iterable[Access]) -> dict[LayerId, list[Access]]:
    """Per layer, in chain order, its READs and WRITEs over all stages in order of start time."""
    layers: dict[LayerId, list[Access]] = defaultdict(list)
    for access in accesses:
        if access.kind is not AccessKind.BACKWARD:
            layers[access.layer].append(access)
    return {layer: sorted(layers[layer], key=time_key) for layer in sorted(layers)}


def layer_order(reads_and_writes_of_layer: Sequence[Access]) -> list[Use]:
    """One layer's READs and WRITEs, as given."""
    return [(access.sequence_id, _LETTERS[access.kind]) for access in reads_and_writes_of_layer]


def access_orders(accesses: Iterable[Access]) -> dict[LayerId, str]:
    """Each layer's access order as text; a frozen layer, never written, has only ``F``."""
    return {
        layer: format_order(layer_order(records))
        for layer, records in reads_and_writes(accesses).items()
    }


def access_order(accesses: Iterable[Access], layer: LayerId) -> str:
    """One layer's access order as text, empty when nobody used the layer."""
    return access_orders(a for a in accesses if a.layer == layer).get(layer, "")


def format_order(uses: Iterable[Use]) -> str:
    """``[(2, "F"), (2, "B")]`` as ``2F-2B``."""
    return "-".join(f"{sequence_id}{letter}" for sequence_id, letter in uses)


def parse_order(text: str) -> list[Use]:
    """Read what :func:`format_order` makes.

    Raises:
        LogError: for any other text.
    """
    if text and not re.fullmatch(r"\d+[FB](-\d+[FB])*", text):
        raise LogError(f"expected an access order such as 2F-2B-5F-5B, found {text!r:.80}")
    return [(int(use[:-1]), use[-1]) for use in text.split("-") if use]
