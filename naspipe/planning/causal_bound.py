"""The causal bound: the least bubble ratio that any schedule of a stream can have.

With stages without number, an access runs as soon as what it needs is there: the access before
it in its subnet, and, for a READ, the WRITE of the version it reads. When the last access ends is
the length of the longest causal chain, and no number of stages is faster than that. The same
figure from a finished run's own times: :func:`naspipe.trace.reading.metrics.causal_bound`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from naspipe.config.ids import LayerId, Subnet
from naspipe.config.rules import BlockRule, Frozen, rule_of, steps_behind
from naspipe.config.steps import ONE_PASS, Steps
from naspipe.planning.cost import CostTable

WARM_UP_SHARE = 10
"""The steady form leaves out the first 1 in 10 subnets, as the bubble ratio of a run does."""


@dataclass(frozen=True, slots=True)
class CausalBound:
    """Work and longest chain of one or several streams; nanoseconds.

    ``parallelism`` is how many stages can be kept busy, however many there are. The plain
    figures hold for the whole stream from its first access to its last. Those called ``steady``
    are of the stream once it flows: the work of what comes after the warm-up over the growth
    of the chain, so that neither the first subnet's way in nor the last one's way out counts.
    """

    work_ns: int
    chain_ns: int
    steady_work_ns: int
    steady_chain_ns: int

    @property
    def parallelism(self) -> float:
        """Work over the longest chain."""
        return self.work_ns / self.chain_ns if self.chain_ns else 1.0

    @property
    def steady_parallelism(self) -> float:
        """Work after the warm-up over what it adds to the longest chain."""
        return self.steady_work_ns / self.steady_chain_ns if self.steady_chain_ns else float("inf")

    def bubble(self, num_stages: int) -> float:
        """The least bubble ratio on so many stages, fill and drain included."""
        return 1 - min(1.0, self.parallelism / num_stages)

    def steady_bubble(self, num_stages: int) -> float:
        """The least bubble ratio on so many stages while the stream flows."""
        return 1 - min(1.0, self.steady_parallelism / num_stages)

    def least_makespan_ns(self, num_stages: int) -> float:
        """No schedule on so many stages ends sooner."""
        return max(self.chain_ns, self.work_ns / num_stages)


def causal_bound(
    subnets: Sequence[Subnet],
    rules: Sequence[BlockRule],
    costs: CostTable,
    steps: Steps = ONE_PASS,
) -> CausalBound:
    """The bound of one stream; O(subnets * blocks).

    Args:
        subnets: in sequence order, at least one.
        rules: the rule of each block of the chain, which says what a READ waits for.
        costs: of every layer's forward, backward and WRITE; makings are left out.
        steps: how passes form steps; a READ waits for WRITEs of earlier steps.
    """
    chain = StreamChain(rules, costs, steps)
    warm_up = steps.first(len(subnets) // WARM_UP_SHARE)
    for subnet in subnets[:warm_up]:
        chain.extend(subnet)
    work_ns, chain_ns = chain.work_ns, chain.longest_ns
    for subnet in subnets[warm_up:]:
        chain.extend(subnet)
    return CausalBound(
        chain.work_ns, chain.longest_ns, chain.work_ns - work_ns, chain.longest_ns - chain_ns
    )


def side_by_side(bounds: Sequence[CausalBound]) -> CausalBound:
    """The bound of streams that share the stages and no layer: the sum of their work and the
    longest of their chains."""
    return CausalBound(
        sum(bound.work_ns for bound in bounds),
        max(bound.chain_ns for bound in bounds),
        sum(bound.steady_work_ns for bound in bounds),
        max(bound.steady_chain_ns for bound in bounds),
    )


@dataclass(slots=True)
class StreamChain:
    """The longest causal chain of a stream's first subnets, one subnet at a time.

    Args:
        rules: the rule of each block of the chain.
        costs: of every layer.
        steps: how passes form steps.
    """

    rules: Sequence[BlockRule]
    costs: CostTable
    steps: Steps = ONE_PASS
    num_passes: int = 0
    work_ns: int = 0
    longest_ns: int = 0
    """When the last access of all subnets so far could end at the earliest."""
    _written: dict[LayerId, deque[tuple[int, int]]] = field(default_factory=dict)
    """Steps of the layer's last WRITEs, the newest last, and when they could end: as many as a
    READ looks back."""
    _unwritten: dict[LayerId, int] = field(default_factory=dict)
    """When the gradients of the step so far could be there."""
    _step_ns: int = 0
    """When the gradients of the step so far could all be there."""
    _probed_ns: int = 0
    """When the losses of the step's probes so far could be there: its other passes follow."""

    def extend(self, subnet: Subnet) -> None:
        """Add the stream's next subnet."""
        layers = list(map(subnet.layer, range(len(subnet.chain))))
        chain = [self.costs.of(*place) for place in enumerate(subnet.chain)]
        is_probe, step = self.steps.is_probe(self.num_passes), self.steps.step(self.num_passes)
        clock = 0 if is_probe else self._probed_ns
        for layer, cost in zip(layers, chain, strict=True):
            clock = max(clock, self._readable_ns(layer, step)) + cost.forward_ns
            self.work_ns += cost.forward_ns
        if is_probe:
            self._probed_ns = max(self._probed_ns, clock)
            layers, chain = [], []
        for layer, cost in zip(reversed(layers), reversed(chain), strict=True):
            clock += cost.backward_ns
            self.work_ns += cost.backward_ns + cost.owed_ns
            known_ns = clock + cost.owed_ns
            self._step_ns = max(self._step_ns, known_ns)
            if not isinstance(rule_of(self.rules, layer), Frozen):
                self._unwritten[layer] = max(known_ns, self._unwritten.get(layer, 0))
        self.num_passes += 1
        self._step_ns = max(self._step_ns, clock)
        self.longest_ns = max(self.longest_ns, self._step_ns)
        if self.steps.begins(self.num_passes):
            self._end_step()

    def _end_step(self) -> None:
        """The step's WRITEs: each behind the layer's last backward, or the step's."""
        for layer, known_ns in self._unwritten.items():
            write_ns = self.costs.of(layer.block, layer.candidate).write_ns
            self.work_ns += write_ns
            self._write(layer, self._step_ns if self.steps.is_gated else known_ns, write_ns)
        self._unwritten.clear()
        self._step_ns = self._probed_ns = 0

    def _readable_ns(self, layer: LayerId, step: int) -> int:
        """When the version that a step reads exists."""
        last = rule_of(self.rules, layer).last_read(step)
        written = reversed(self._written.get(layer, ()))
        return next((end_ns for number, end_ns in written if number <= last), 0)

    def _write(self, layer: LayerId, after_ns: int, write_ns: int) -> None:
        """A WRITE follows its backward and the WRITE before it."""
        written = self._written.get(layer)
        if written is None:
            behind = steps_behind(rule_of(self.rules, layer)) or 0
            written = self._written[layer] = deque(maxlen=behind + 1)
        end_ns = max(after_ns, written[-1][1] if written else 0) + write_ns
        written.append((self.steps.step(self.num_passes - 1), end_ns))
        self.longest_ns = max(self.longest_ns, end_ns)


def chain_lengths(
    subnets: Iterable[Subnet], rules: Sequence[BlockRule], costs: CostTable, steps: Steps = ONE_PASS
) -> list[int]:
    """The longest chain of the first 1, 2, 3, ... subnets of one stream; nanoseconds."""
    chain = StreamChain(rules, costs, steps)
    lengths: list[int] = []
    for subnet in subnets:
        chain.extend(subnet)
        lengths.append(chain.longest_ns)
    return lengths
