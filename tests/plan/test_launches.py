"""When sums of gradients leave a group: behind their layer, their partition, or at the end."""

from __future__ import annotations

import itertools

import pytest

from naspipe.config.errors import InvariantError
from naspipe.config.ids import AccessKind, SequenceId, StageId, StreamId, Subnet
from naspipe.config.partition import Partition
from naspipe.config.rules import Exact
from naspipe.config.steps import Steps
from naspipe.engine.builder import build_admission, build_controller
from naspipe.engine.events import COPY, LAYER, SUM, ContributionArrived
from naspipe.engine.gates import EndLaunch, Gates, PartitionLaunch
from naspipe.engine.invariants import violations
from naspipe.plan.virtual_driver import VirtualClock, simulate_into
from tests.plan.test_steps import run

LAUNCHES = ("layer", "partition", "end")
GROUPS, STAGES, PASSES, BLOCKS = 2, 4, 8, 8
SHAPE = Partition(tuple(range(0, BLOCKS + 1, BLOCKS // STAGES)))
RULES = [Exact()] * BLOCKS


class SharedLink:
    """Sums and copies go one after the other over one link; it notes when each sum is sent."""

    def __init__(self, clock, push_ns):
        self._clock, self._push_ns, self._free_ns = clock, push_ns, 0
        self.left = {}

    def access_ns(self, layer, kind, sequence_id=-1):
        return {AccessKind.FORWARD: 100, AccessKind.BACKWARD: 200, AccessKind.WRITE: 0}[kind]

    def add_ns(self, layer, sequence_id):
        return 0

    def make_ns(self, layer):
        return 0

    def between_ns(self, parcels=0):
        return 0

    def message_ns(self, receiver):
        return 1

    def push_ns(self, layer, parcel=LAYER):
        now_ns = self._clock.now_ns
        if parcel == SUM:
            self.left.setdefault(layer.block, []).append(now_ns)
        self._free_ns = max(self._free_ns, now_ns) + (self._push_ns if parcel in (SUM, COPY) else 0)
        return self._free_ns - now_ns

    def copy_ns(self, layer):
        return 0


def simulated(launch, push_ns=300, steps=3, chains=None):
    """The accesses of a plain network on 2x4, and when the sum of each block was sent."""
    kind = Steps(PASSES)
    chains = chains or [(0,) * BLOCKS] * PASSES
    subnets = [Subnet(0, y, chains[y % PASSES]) for y in range(steps * PASSES)]
    cuts = [SHAPE.in_group(kind.group(y, GROUPS), GROUPS) for y in range(len(subnets))]
    controllers = [
        build_controller(stage, [RULES], steps=kind, buffered=(), reduction_launch=launch)
        for stage in range(GROUPS * STAGES)
    ]
    clock, found = VirtualClock(), []
    link = SharedLink(clock, push_ns)
    simulate_into(
        found.append, lambda _, y: (subnets[y], cuts[y], None), controllers, link,
        lambda: [build_admission("csp", len(subnets), window=2 * PASSES, steps=kind)], clock,
    )  # fmt: skip
    assert list(violations(found, RULES, subnets, steps=kind, buffered=())) == []
    return found, link.left


def backward_ends(accesses, step=0, group=0):
    """Of one step in one group: when each block's last backward was over."""
    ends = {}
    for access in accesses:
        is_asked = access.kind is AccessKind.BACKWARD and access.stage // STAGES == group
        if is_asked and access.sequence_id // PASSES == step:
            ends[access.layer.block] = max(ends.get(access.layer.block, 0), access.end_ns)
    return ends


def test_the_moment_of_leaving():
    """Behind each layer; two blocks of a stage together; all of the group, once it is told."""
    for launch in LAUNCHES:
        accesses, left = simulated(launch)
        ends = backward_ends(accesses)
        first = {block: moments[0] for block, moments in left.items()}
        if launch == "layer":
            assert first == ends
        elif launch == "partition":
            assert first == {block: ends[block - block % 2] for block in ends}
        else:
            end = max(ends.values())
            assert first == {block: end + (block >= 2) for block in ends}, "one message later"


def test_of_subnets_each_has_its_own_partition():
    """A layer that only the first of a group uses leaves behind it, or at the end."""
    chains = [(int(number % 4 > 0),) * BLOCKS for number in range(PASSES)]
    left = {launch: simulated(launch, chains=chains)[1] for launch in LAUNCHES}
    assert all(left["layer"][block][0] <= left["partition"][block][0] for block in range(BLOCKS))
    assert all(left["partition"][block][0] < left["end"][block][0] for block in range(BLOCKS))


@pytest.mark.parametrize("push_ns", [0, 100, 300, 1000])
def test_later_sums_make_no_shorter_run(push_ns):
    ends = [max(access.end_ns for access in simulated(launch, push_ns)[0]) for launch in LAUNCHES]
    assert ends == sorted(ends)
    if push_ns >= 100:
        assert ends[0] < ends[1] < ends[2], "a slow link shows when sums leave"


def test_the_order_of_every_layer_stays():
    found = []
    for launch, seed in itertools.product(LAUNCHES, range(5)):
        kind = Steps(4)
        subnets = [Subnet(0, y, (0, y // 4 % 2, 0)) for y in range(24)]
        cuts = [Partition((0, 1, 3)).in_group(kind.group(y, 2), 2) for y in range(24)]
        accesses = run([Exact()] * 3, subnets, cuts, kind, seed, 8, reduction_launch=launch)
        writes = [a for a in accesses if a.kind is AccessKind.WRITE]
        writes.sort(key=lambda access: (access.layer, access.end_ns))
        found.append([(each.layer, each.sequence_id) for each in writes])
    assert all(each == found[0] for each in found)


def test_an_end_that_nobody_waits_for():
    arrived = ContributionArrived(0, "launch", StreamId(0), SequenceId(0), StageId(1))
    for launch in (PartitionLaunch, EndLaunch):
        with pytest.raises(InvariantError, match="no gate waits for"):
            Gates([launch(Steps(4))]).arrive(arrived)
