"""The causal bound: the least bubble ratio that any schedule of a stream can have.

With an unlimited number of stages, an access runs as soon as its dependencies are met: the previous
access of its subnet and, for a READ, the WRITE of the version that it reads. The end of the last
access is the length of the longest causal chain, and no number of stages is faster than that.
:func:`naspipe.store.metrics.causal_bound` computes the same figure from the measured times of a
finished run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from naspipe.config.ids import LayerId, Subnet
from naspipe.config.rules import BlockRule, Frozen, Rule, rule_of, steps_behind
from naspipe.config.steps import ONE_PASS, Steps
from naspipe.engine.events import Priorities
from naspipe.plan.costs import CostTable, LayerCost

WARM_UP_SHARE = 10
"""The steady figures leave out the first 1 in 10 subnets, as the bubble ratio of a run does."""


@dataclass(frozen=True, slots=True)
class CausalBound:
    """Work and longest chain of one or several streams, in nanoseconds.

    ``parallelism`` is the number of stages that can be kept busy, however many there are. The plain
    figures hold for the whole stream from its first access to its last. The ``steady`` figures
    describe the stream after the warm-up: the work after the warm-up over the growth of the chain,
    so that neither the fill by the first subnet nor the drain of the last one counts.
    """

    work_ns: int
    chain_ns: int
    steady_work_ns: int
    steady_chain_ns: int

    @property
    def parallelism(self) -> float:
        return self.work_ns / self.chain_ns if self.chain_ns else 1.0

    @property
    def steady_parallelism(self) -> float:
        """Work after the warm-up over its addition to the longest chain."""
        return self.steady_work_ns / self.steady_chain_ns if self.steady_chain_ns else float("inf")

    def bubble(self, num_stages: int) -> float:
        """Return the least bubble ratio on ``num_stages`` stages, fill and drain included."""
        return 1 - min(1.0, self.parallelism / num_stages)

    def steady_bubble(self, num_stages: int) -> float:
        """Return the least bubble ratio on ``num_stages`` stages in the steady state."""
        return 1 - min(1.0, self.steady_parallelism / num_stages)

    def least_makespan_ns(self, num_stages: int) -> float:
        """Return a lower bound of the makespan of any schedule on ``num_stages`` stages."""
        return max(self.chain_ns, self.work_ns / num_stages)


def causal_bound(
    subnets: Sequence[Subnet],
    rules: Sequence[BlockRule],
    costs: CostTable,
    steps: Steps = ONE_PASS,
) -> CausalBound:
    """Return the bound of one stream, in O(subnets * blocks).

    Args:
        subnets: in sequence order, at least one.
        rules: the rule of each block of the chain, which determines what a READ waits for.
        costs: the forward, backward and WRITE of every layer; initialization is left out.
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
    """Return the bound of streams without common layers: the sum of work and the longest chain."""
    return CausalBound(
        sum(bound.work_ns for bound in bounds),
        max(bound.chain_ns for bound in bounds),
        sum(bound.steady_work_ns for bound in bounds),
        max(bound.steady_chain_ns for bound in bounds),
    )


@dataclass(slots=True)
class StreamChain:
    """The longest causal chain of a stream's first subnets, extended one subnet at a time."""

    rules: Sequence[BlockRule]
    costs: CostTable
    steps: Steps = ONE_PASS
    num_passes: int = 0
    work_ns: int = 0
    longest_ns: int = 0
    """The earliest possible end of the last access of all subnets so far."""
    _written: dict[LayerId, deque[tuple[int, int]]] = field(default_factory=dict)
    """Steps of the layer's last WRITEs and their earliest possible ends, the newest last; as many
    as a READ looks back."""
    _unwritten: dict[LayerId, int] = field(default_factory=dict)
    """The earliest time at which each layer's gradients of the step so far are available."""
    _step_ns: int = 0
    """The earliest time at which all gradients of the step so far are available."""
    _probed_ns: int = 0
    """The earliest time at which the losses of the step's probes so far are available; its other
    passes follow."""

    def extend(self, subnet: Subnet) -> None:
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
        """Add the step's WRITEs, each after the last backward of the layer (gated: the step)."""
        for layer, known_ns in self._unwritten.items():
            write_ns = self.costs.of(layer.block, layer.candidate).write_ns
            self.work_ns += write_ns
            self._write(layer, self._step_ns if self.steps.is_gated else known_ns, write_ns)
        self._unwritten.clear()
        self._step_ns = self._probed_ns = 0

    def _readable_ns(self, layer: LayerId, step: int) -> int:
        last = rule_of(self.rules, layer).last_read(step)
        written = reversed(self._written.get(layer, ()))
        return next((end_ns for number, end_ns in written if number <= last), 0)

    def _write(self, layer: LayerId, after_ns: int, write_ns: int) -> None:
        written = self._written.get(layer)
        if written is None:
            behind = steps_behind(rule_of(self.rules, layer)) or 0
            written = self._written[layer] = deque(maxlen=behind + 1)
        end_ns = max(after_ns, written[-1][1] if written else 0) + write_ns
        written.append((self.steps.step(self.num_passes - 1), end_ns))
        self.longest_ns = max(self.longest_ns, end_ns)


GRAIN = 0.3
"""Fraction of a subnet's mean work; smaller differences are left to the paper's order. Chosen on
seeds 0 to 4 with the costs of Table 5: about 0.005 to 0.01 less bubble under uniform sampling at 2
and 4 stages, 0.003 more at 8."""

STREAMS_GRAIN = 0.1
"""The same for several streams, which share the bubbles evenly only if small differences count."""


def coarsened(priorities: Sequence[Priorities], grain_ns: int) -> list[Priorities]:
    """Round priorities down to whole grains, so that the next rule decides between similar ones.

    That rule is the paper's: backward first, then the older subnet. Finishing started subnets is
    worth more than a small difference between long paths.
    """
    return [
        Priorities(*(tuple(level // grain_ns for level in row) for row in one))
        for one in priorities
    ]


def critical_path_priorities(
    subnets: Sequence[Subnet],
    rules: Sequence[BlockRule],
    costs: CostTable,
    steps: Steps = ONE_PASS,
) -> list[Priorities]:
    """Return the priorities of every subnet of a stream, in nanoseconds; O(subnets * blocks).

    The passes of a step wait only for WRITEs of earlier steps, and their own WRITEs end the step.
    The stream begins with a step.
    """
    waiting: dict[LayerId, tuple[tuple[int, int], ...]] = {}
    together: dict[LayerId, int] = {}
    result: list[Priorities] = []
    for number in reversed(range(len(subnets))):
        layers = list(map(subnets[number].layer, range(len(subnets[number].chain))))
        chain = [costs.of(*place) for place in enumerate(subnets[number].chain)]
        step = steps.step(subnets[number].sequence_id)
        after_write = [
            _next_reader(rule_of(rules, layer), step, waiting.get(layer, ())) for layer in layers
        ]
        priorities = _levels(chain, after_write)
        result.append(priorities)
        for layer, level in zip(layers, priorities.forward, strict=True):
            together[layer] = max(level, together.get(layer, 0))
        if steps.begins(number):
            for layer, level in together.items():
                behind = steps_behind(rule_of(rules, layer)) or 0
                waiting[layer] = ((step, level), *waiting.get(layer, ())[:behind])
            together.clear()
    return result[::-1]


def _levels(chain: Sequence[LayerCost], after_write: Sequence[int]) -> Priorities:
    """Return the longest paths through one subnet, given what waits for each of its WRITEs."""
    backward: list[int] = []
    write: list[int] = []
    longest = 0
    for cost, waits in zip(chain, after_write, strict=True):
        behind = cost.owed_ns + cost.write_ns
        written = behind + waits
        longest = cost.backward_ns + max(longest, written)
        backward.append(longest)
        write.append(written if behind else longest)
    forward: list[int] = []
    for cost in reversed(chain):
        longest += cost.forward_ns
        forward.append(longest)
    return Priorities(tuple(reversed(forward)), tuple(backward), tuple(write))


def _next_reader(rule: Rule, step: int, later: tuple[tuple[int, int], ...]) -> int:
    """Return the forward level of the first later step that reads ``step``'s WRITE, else 0.

    ``later`` holds the later steps that use the layer and their levels, the next one first.
    """
    return next((level for number, level in later if rule.last_read(number) >= step), 0)
