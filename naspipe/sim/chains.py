"""What of a run a schedule depends on: the chain of its space, its subnets and their costs."""

from __future__ import annotations

import math
from collections.abc import Container
from dataclasses import dataclass, replace

from naspipe.config.ids import Subnet
from naspipe.config.rules import BlockRule, with_stateless
from naspipe.config.space import Space
from naspipe.planning.cost import CostTable, first_of_kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """What of a space a schedule depends on."""

    rules: tuple[BlockRule, ...]
    """Of each block of the chain."""
    is_shared: tuple[bool, ...]
    """For each block, whether every subnet uses its only layer, which stays where it is."""
    buffered: frozenset[tuple[int, int]] | None = None
    """Block and candidate of the layers whose forwards leave something; None for all."""
    stateless: frozenset[tuple[int, int]] = frozenset()
    """Block and candidate of the layers without parameters and buffers, which the rules know."""
    kinds: tuple[int, ...] = ()
    """For each block, the first block with the same candidates; empty if each has its own."""

    @classmethod
    def of(
        cls,
        space: Space,
        buffered: frozenset[tuple[int, int]] | None = None,
        stateless: frozenset[tuple[int, int]] = frozenset(),
    ) -> Chain:
        """The chain of a space."""
        counts = [len(block.candidates) for block in space.blocks]
        return cls(
            rules=with_stateless(space.rules, counts, stateless),
            is_shared=space.stays,
            buffered=buffered,
            stateless=stateless,
            kinds=first_of_kind(space),
        )


class _Every:
    """All options of all blocks."""

    def __contains__(self, place: object) -> bool:
        return True


EVERY_OPTION: Container[tuple[int, int]] = _Every()


@dataclass(frozen=True, slots=True)
class Stream:
    """One run of a pipeline, as far as its schedule depends on it."""

    chain: Chain
    subnets: tuple[Subnet, ...]
    """In sequence order; at least one."""
    costs: CostTable | None
    """Of every layer; None for one stage without a limit of activations."""
    output_bytes: int = 1
    """What its last block hands to other streams in a pass, where that matters."""
    is_sample: bool = False
    """Whether the subnets only stand for others, which are not known yet."""
    split: Container[tuple[int, int]] = frozenset()
    """Blocks, with those of their options whose backwards are split; ``costs`` know it."""

    def splitting(self, dearer: float) -> Stream:
        """The same stream with split backwards; see :meth:`Pipeline.splitting`."""
        chosen: Container[tuple[int, int]] = EVERY_OPTION
        if not math.isinf(dearer):
            measured = self.costs.costs if self.costs else {}
            chosen = {place for place, cost in measured.items() if 0 < cost.split_ratio <= dearer}
        return self.split_at(chosen)

    def split_at(self, chosen: Container[tuple[int, int]]) -> Stream:
        """The same stream where the backwards of these options of blocks are split."""
        return replace(self, costs=self.costs and self.costs.split(chosen), split=chosen)
