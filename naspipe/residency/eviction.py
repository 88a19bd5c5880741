"""Which layers to evict: those whose next use lies furthest ahead, as Belady's rule has it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from naspipe.config.ids import LayerId

_NEVER = sys.maxsize


class Candidate(NamedTuple):
    """A layer on the device; ``last_used`` rises with every use of any layer."""

    layer: LayerId
    size_bytes: int
    last_used: int


def eviction_order(
    candidates: Iterable[Candidate], next_uses: Mapping[LayerId, int]
) -> list[Candidate]:
    """The candidates, the best to evict first.

    Layers that the forecast does not mention come first, the least recently used of them
    before the others; then those whose next use (its place in the forecast) is furthest.
    """

    def key(candidate: Candidate) -> tuple[int, int, LayerId]:
        next_use = next_uses.get(candidate.layer, _NEVER)
        return (-next_use, candidate.last_used, candidate.layer)

    return sorted(candidates, key=key)


def choose_victims(
    candidates: Iterable[Candidate], next_uses: Mapping[LayerId, int], needed_bytes: int
) -> list[LayerId]:
    """The layers to evict so that at least ``needed_bytes`` become free, in eviction order.

    Those that turn out not to be needed, because a later one is large enough, are spared,
    the soonest used first. Empty when all candidates together are too small.
    """
    return enough_of(eviction_order(candidates, next_uses), needed_bytes)


def enough_of(candidates: Iterable[Candidate], needed_bytes: int) -> list[LayerId]:
    """The same, of candidates that are in order; no more of them are drawn than are enough."""
    chosen: list[Candidate] = []
    missing = needed_bytes
    for candidate in candidates:
        chosen.append(candidate)
        missing -= candidate.size_bytes
        if missing <= 0:
            break
    if missing > 0:
        return []
    spare = -missing
    victims: list[LayerId] = []
    for candidate in reversed(chosen):
        if candidate.size_bytes <= spare:
            spare -= candidate.size_bytes
        else:
            victims.append(candidate.layer)
    return victims[::-1]
