"""The causal bound: the least bubble ratio that any schedule of a stream can have.

With stages without number, an access runs as soon as what it needs is there: the access before
it in its subnet, and, for a READ, the WRITE of the version it reads. When the last access ends is
the length of the longest causal chain, and no number of stages is faster than that. The same
figure from a finished run's own times: :func:`naspipe.store.metrics.causal_bound`.
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
    """The longest causal chain of a stream's first subnets, one subnet at a time."""

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
    """When the losses of the step's probes so far could be there; its other passes follow."""

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
        """Add the step's WRITEs, each after the layer's last backward, or after that of the
        step."""
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
"""Of a subnet's mean work: differences below it are left to the paper's order. Chosen on seeds 0 to
4 with the costs of Table 5: about 0.005 to 0.01 less bubble under uniform sampling at 2 and 4
stages, 0.003 more at 8."""

STREAMS_GRAIN = 0.1
"""The same for several streams, which share the bubbles evenly only if small differences count."""


def coarsened(priorities: Sequence[Priorities], grain_ns: int) -> list[Priorities]:
    """Priorities in whole grains, so that the order's next rule decides between near ones.

    That rule is the paper's: backward first, then the older subnet. It finishes what was begun,
    which a small difference between long paths is not worth giving up.
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
    """The priorities of every subnet of a stream, in nanoseconds; O(subnets * blocks).

    The passes of a step wait for WRITEs of earlier steps alone, and their own end the step. The
    stream begins with a step.
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
    """Longest paths through one subnet, given what waits for each of its WRITEs."""
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
    """The forward level of the first later step that reads the WRITE of ``step``, 0 for none.

    ``later`` holds later steps with the layer and their levels, the next one first.
    """
    return next((level for number, level in later if rule.last_read(number) >= step), 0)
