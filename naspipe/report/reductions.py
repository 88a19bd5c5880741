"""How the WRITEs of a step are combined: sums of gradients between groups, and the global norm.

    stage 0, first group     B0 W0  B1 W1 ─── sum ──┐
    stage 1, second group    B2 .. B3 ............. W2 W3

Every pass of a step has a WRITE in the log. The last one takes the optimizer step; the others only
accumulate gradients. If a layer's next WRITE is on another stage, the sum was sent there between
the two. A log therefore gives the earliest time at which a sum could be sent, and the latest time
at which it arrived.

In a tree of passes, each stage sums its own gradients first, and only its last WRITE waits for
sums. An intermediate stage could send a sum as soon as all of its parts were available. This module
also defines all reasons for which a stage can wait, because some of them are specific to sums.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from itertools import chain, pairwise
from typing import NamedTuple

from naspipe.config.ids import Access, AccessKind, LayerId, StageId
from naspipe.config.steps import Steps


class Reason(Enum):
    """What a stage waited for."""

    FILL = "fill"
    """The stage's first input, while the pipeline was filling."""
    INPUT = "input"
    """Activations, gradients or a layer of another stage, including the message's time."""
    CAUSAL = "causal"
    """An earlier subnet's WRITE of a layer, which a forward whose input was there reads."""
    REDUCTION = "reduction"
    """The sum of another group's gradients, for a WRITE that had its own."""
    COPY = "copy"
    """A layer that another group had written, on its way back."""
    BUFFERS = "buffers"
    """What another group's forward leaves for the next pass: running statistics of norms."""
    NORM = "norm"
    """All gradients of a step, for a WRITE that had its own: the global norm."""
    WINDOW = "window"
    """An earlier subnet to finish here, so that another may be admitted."""
    TEACHER = "teacher"
    """Nothing: a teacher's forward ran here."""
    LOAD = "load"
    """A layer on its way from host memory to the device."""
    OTHER = "other"
    """Nothing that a log knows: dispatch, messages, making of layers, a busy machine."""
    DRAIN = "drain"
    """Nothing is left to do here while other stages finish."""


class Held(NamedTuple):
    """A WRITE with its own gradients waited for ``cause`` from ``start_ns`` to ``end_ns``."""

    start_ns: int
    end_ns: int
    reason: Reason
    cause: Access


class Handover(NamedTuple):
    """The sum of a layer's gradients is sent from one stage to another.

    ``given`` is the last WRITE of the sender. ``joined``, the WRITE of the next pass, follows the
    sum; in a tree it is the receiver's last one. The receiver had its own gradients from ``own_ns``
    on, and did not wait for the sum after ``came_ns``. The sum was sent at ``left_ns`` at the
    earliest and joined at ``joined_ns`` at the latest.
    """

    given: Access
    joined: Access
    own_ns: int
    came_ns: int
    left_ns: int
    joined_ns: int

    @property
    def waited_ns(self) -> int:
        """Time that the receiver had only its own gradients, including the message's transfer.

        It is 0 for a sum that was sent before, because the log does not show whether the receiver
        waited.
        """
        return self.came_ns - self.own_ns if self.left_ns > self.own_ns else 0


class Reductions:
    """Looks up what the WRITEs of a log waited for in addition to their own gradients."""

    def __init__(self, accesses: Iterable[Access], steps: Steps) -> None:
        self._steps = steps
        self._writes: dict[tuple[LayerId, int], list[Access]] = defaultdict(list)
        self._gradients: dict[tuple[LayerId, int, StageId], list[int]] = defaultdict(list)
        """Times at which a stage's own gradients became available, by layer, step and stage."""
        self._lasts: dict[tuple[int, int], Access] = {}
        """The last record that the norm of a stream's step waited for."""
        for access in accesses:
            layer, step = access.layer, steps.step(access.sequence_id)
            if access.kind is AccessKind.WRITE:
                self._writes[layer, step].append(access)
            elif access.kind is AccessKind.BACKWARD:
                self._gradients[layer, step, access.stage].append(access.end_ns)
                self._norm_waits_for(access)
        for writes in self._writes.values():
            writes.sort(key=lambda write: write.sequence_id)
        self._handovers: dict[tuple[LayerId, int, StageId], list[Handover]] = defaultdict(list)
        for (layer, step), writes in self._writes.items():
            for made in self._sums_of(writes):
                self._handovers[layer, step, made.joined.stage].append(made)
                self._norm_waits_for(made.given)

    @property
    def handovers(self) -> Sequence[Handover]:
        """All sums between stages, by the time at which they could be sent."""
        return sorted(chain(*self._handovers.values()), key=lambda each: each.left_ns)

    def is_sum(self, given: Access, write: Access) -> bool:
        """Return True if a WRITE follows a sum from another stage's WRITE of the same step."""
        step = self._steps.step(write.sequence_id)
        return given.stage != write.stage and self._steps.step(given.sequence_id) == step

    def are_apart(self, given: Access, write: Access) -> bool:
        """Return True if a WRITE does not follow another stage's, because each has its own sum."""
        return self._steps.is_tree and self.is_sum(given, write)

    def holds(self, write: Access) -> list[Held]:
        """Return the delays of a WRITE whose stage had its own gradients, ordered and disjoint."""
        layer, step = write.layer, self._steps.step(write.sequence_id)
        held: list[Held] = []
        own_ns = max(self._gradients.get((layer, step, write.stage), ()), default=write.start_ns)
        came = self._handovers.get((layer, step, write.stage), [])
        handover = max(came, key=lambda each: each.left_ns, default=None)
        waits = not self._steps.is_tree or write == self._writes[layer, step][-1]
        if waits and handover is not None and handover.waited_ns and own_ns < handover.came_ns:
            held.append(Held(own_ns, handover.came_ns, Reason.REDUCTION, handover.given))
            own_ns = handover.came_ns
        if self._is_gated(write):
            last = self._lasts[layer.stream, step]
            if own_ns < last.end_ns:
                held.append(Held(own_ns, last.end_ns, Reason.NORM, last))
        return held

    def is_copy(self, reader: Access) -> bool:
        """Return True if a forward reads a copy of a layer that another stage writes that step."""
        writes = self._writes.get((reader.layer, self._steps.step(reader.sequence_id)))
        return writes is not None and writes[-1].stage != reader.stage

    def _sums_of(self, writes: Sequence[Access]) -> Iterator[Handover]:
        if not self._steps.is_tree:
            for given, joined in pairwise(writes):
                if given.stage != joined.stage:
                    yield self._handover(given, joined, given.end_ns, joined.start_ns)
            return
        lasts = list({write.stage: write for write in writes}.values())
        left_ns = [write.end_ns for write in lasts]
        for giver, receiver in self._steps.handed_on([write.sequence_id for write in lasts]):
            given_ns = left_ns[giver]
            left_ns[receiver] = max(left_ns[receiver], given_ns)
            yield self._handover(lasts[giver], lasts[receiver], given_ns, writes[-1].start_ns)

    def _handover(self, given: Access, joined: Access, left_ns: int, joined_ns: int) -> Handover:
        """Make a handover with the times that follow from the log.

        If the WRITE is gated, or in a tree, the log shows when a sum was sent, but not when it
        arrived. If old versions of a layer are kept, a sum may be joined between the receiver's
        passes.
        """
        key = (joined.layer, self._steps.step(joined.sequence_id), joined.stage)
        own = [end_ns for end_ns in self._gradients.get(key, ()) if end_ns <= joined.start_ns]
        is_told = joined.start_ns == joined_ns and not self._is_gated(joined)
        came_ns, own_ns = joined_ns if is_told else left_ns, max(own, default=joined.start_ns)
        return Handover(given, joined, own_ns, came_ns, left_ns, max(left_ns, joined_ns))

    def _is_gated(self, write: Access) -> bool:
        """Return True if a WRITE waited for the norm, as the last WRITE of a step does."""
        writes = self._writes[write.layer, self._steps.step(write.sequence_id)]
        return self._steps.is_gated and write.sequence_id == writes[-1].sequence_id

    def _norm_waits_for(self, access: Access) -> None:
        key = (access.layer.stream, self._steps.step(access.sequence_id))
        if key not in self._lasts or access.end_ns > self._lasts[key].end_ns:
            self._lasts[key] = access
