"""Whatever things take, every READ sees the version of the sequential order."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from naspipe.config.errors import InvariantError
from naspipe.config.ids import INITIAL, AccessKind, LayerId, Subnet
from naspipe.config.partition import Partition
from naspipe.config.rules import Exact, Lag, PartlyFrozen, rule_of
from naspipe.engine.admission import AdmissionWindow
from naspipe.engine.builder import build_controller
from naspipe.engine.invariants import violations
from naspipe.engine.policies import CausalPolicy
from naspipe.engine.versions import VersionBook
from naspipe.plan.virtual_driver import simulate
from naspipe.store.access_order import access_orders
from scripts.paper.costs import BlockCosts, RandomCosts
from tests.strategies import moving_pipelines, pipelines, with_stateless_layers


def run(rules, subnets, partitions, costs, window=6, partly=True, priorities=None):
    if isinstance(partitions, Partition):
        partitions = [partitions] * len(subnets)
    controllers = [
        build_controller(
            stage, [rules], order="critical-path" if priorities else "paper",
            starts_partly_clear=partly,
        )
        for stage in range(partitions[0].num_stages)
    ]  # fmt: skip
    urgent = priorities or [None] * len(subnets)
    stages = simulate(
        lambda _, y: (subnets[y], partitions[y], urgent[y]), controllers, costs,
        lambda: [AdmissionWindow(window, len(subnets))],
    )  # fmt: skip
    return [access for accesses in stages for access in accesses]


def sequential_orders(rules, subnets):
    orders = {}
    for subnet in subnets:
        for block in range(len(rules)):
            if rule_of(rules, subnet.layer(block)) == Exact():
                steps = orders.setdefault(subnet.layer(block), [])
                steps += [f"{subnet.sequence_id}F", f"{subnet.sequence_id}B"]
    return {layer: "-".join(steps) for layer, steps in orders.items()}


@settings(max_examples=300)
@given(
    st.one_of(pipelines(), with_stateless_layers(pipelines())),
    st.integers(0, 2**32), st.integers(1, 9), st.booleans(),
)  # fmt: skip
def test_reads_and_orders_are_sequential(pipeline, seed, window, partly):
    rules, subnets, partition = pipeline
    accesses = run(rules, subnets, partition, RandomCosts(seed), window, partly)
    assert list(violations(accesses, rules, subnets)) == []
    orders = access_orders(accesses)
    expected = sequential_orders(rules, subnets)
    assert {layer: orders[layer] for layer in expected} == expected


@settings(max_examples=300)
@given(
    st.one_of(moving_pipelines(), with_stateless_layers(moving_pipelines())),
    st.integers(0, 2**32), st.integers(1, 9), st.booleans(),
)  # fmt: skip
def test_layers_follow_their_users_over_the_stages(pipeline, seed, window, partly):
    """With a partition per subnet, mirrored layers too are read and written in order."""
    rules, subnets, partitions = pipeline
    accesses = run(rules, subnets, partitions, RandomCosts(seed), window, partly)
    assert list(violations(accesses, rules, subnets)) == []
    for access in accesses:
        own = partitions[access.sequence_id]
        assert own.stage_of(access.layer.block) == access.stage


@settings(max_examples=100)
@given(with_stateless_layers(pipelines()), st.integers(0, 2**32), st.integers(1, 9))
def test_layers_without_state_hold_nobody_back(pipeline, seed, window):
    """Nothing is written there, and all else is as if each subnet had one of its own."""
    rules, subnets, partition = pipeline
    stateless = {
        subnet.layer(block) for subnet in subnets for block, rule in enumerate(rules)
        if isinstance(rule, PartlyFrozen) and subnet.chain[block] in rule.frozen
    }  # fmt: skip

    def alone(subnet):
        mine = [
            100 + subnet.sequence_id if subnet.layer(block) in stateless else candidate
            for block, candidate in enumerate(subnet.chain)
        ]
        return subnet._replace(chain=tuple(mine))

    own = [
        PartlyFrozen(rule.rule, frozenset(range(100, 200)))
        if isinstance(rule, PartlyFrozen) else rule
        for rule in rules
    ]  # fmt: skip
    shared, apart = (
        run(those, stream, partition, RandomCosts(seed), window)
        for those, stream in ((rules, subnets), (own, list(map(alone, subnets))))
    )
    there = [access for access in shared if access.layer in stateless]
    assert all(
        access.kind is not AccessKind.WRITE and access.version == INITIAL for access in there
    )
    times = [
        [(a.sequence_id, a.layer.block, a.kind, a.version, a.start_ns) for a in accesses]
        for accesses in (shared, apart)
    ]
    assert times[0] == times[1]


def test_a_layer_is_pushed_to_its_next_user_only():
    """Subnet 1 takes layer 1.0 from stage 1 to stage 0, subnet 3 takes it back."""
    rules = [Exact()] * 3
    subnets = [Subnet(0, y, (y, 0 if y != 2 else 1, y)) for y in range(4)]
    partitions = [Partition((0, 1, 3)), Partition((0, 2, 3)), Partition((0, 2, 3)),
                  Partition((0, 1, 3))]  # fmt: skip
    pushed = []

    class Costs(RandomCosts):
        def push_ns(self, layer, parcel):
            pushed.append(layer)
            return 5

    accesses = run(rules, subnets, partitions, Costs(1))
    assert list(violations(accesses, rules, subnets)) == []
    assert pushed == [LayerId(0, 1, 0)] * 2


@settings(max_examples=50)
@given(pipelines(), st.integers(0, 2**32))
def test_same_input_same_schedule(pipeline, seed):
    rules, subnets, partition = pipeline
    first = run(rules, subnets, partition, RandomCosts(seed))
    assert first == run(rules, subnets, partition, RandomCosts(seed))


CONFLICT = (
    [Exact()] * 4,
    [Subnet(0, y, (y, y % 5, 0, y % 3)) for y in range(12)],
    Partition((0, 2, 4)),
)


def test_dropping_one_dependency_is_seen(monkeypatch):
    """Pretend that one layer's versions always exist: the log must show it."""
    exists = VersionBook.exists

    def forgetful(book, layer, version):
        return True if layer.block == 2 else exists(book, layer, version)

    monkeypatch.setattr(VersionBook, "exists", forgetful)
    seen = 0
    for seed in range(20):
        try:
            accesses = run(*CONFLICT, RandomCosts(seed))
        except InvariantError:
            seen += 1  # the book's own check of the WRITE order caught it
        else:
            seen += bool(list(violations(accesses, CONFLICT[0], CONFLICT[1])))
    assert seen > 0


def test_reading_a_wrong_version_is_seen(monkeypatch):
    """A policy that lets every reader see one WRITE less than it should."""

    def stale(policy, rule, users, reader):
        return users[0] if len(users) < 2 else users[-2]

    monkeypatch.setattr(CausalPolicy, "version_to_read", stale)
    accesses = run(*CONFLICT, RandomCosts(0))
    assert any("expected to read" in line for line in violations(accesses, *CONFLICT[:2]))


def test_lag_limits_what_is_under_way():
    """With lag(K) in front, subnet y's first READ waits for the WRITE of y - 1 - K."""
    rules = [Lag(2), Exact(), Exact(), Exact()]
    subnets = [Subnet(0, y, (0, y, y, y)) for y in range(10)]
    accesses = run(rules, subnets, Partition((0, 2, 4)), RandomCosts(3), window=10)
    reads = {a.sequence_id: a.version for a in accesses
             if a.layer.block == 0 and a.kind is AccessKind.FORWARD}  # fmt: skip
    assert reads == {y: max(y - 3, INITIAL) for y in range(10)}


def test_golden_schedule_of_the_papers_order():
    """Two stages, unit forwards, backwards of two; subnets 0 and 1 share a layer of stage 1.

    stage 0  0F 1F 2F .. 0B 0B .. 1B 1B .. 2B 2B
    stage 1  .. 0F 0B 0B 1F 1B 1B 2F 2B 2B       1F waits at 2: layer 1.0 is owed a WRITE by 0
    """
    rules = [Exact(), Exact()]
    subnets = [Subnet(0, 0, (0, 0)), Subnet(0, 1, (1, 0)), Subnet(0, 2, (2, 1))]
    costs = BlockCosts(forward_ns={(b, c): 10 for b in range(2) for c in range(3)})
    accesses = run(rules, subnets, Partition((0, 1, 2)), costs)
    text = [
        f"{a.start_ns // 10}:{a.sequence_id}{a.kind.value}@{a.stage}"
        for a in sorted(accesses, key=lambda a: (a.start_ns, a.stage))
        if a.kind is not AccessKind.WRITE
    ]
    assert text == [
        "0:0F@0", "1:1F@0", "1:0F@1", "2:2F@0", "2:0B@1", "4:0B@0", "4:1F@1", "5:1B@1",
        "7:1B@0", "7:2F@1", "8:2B@1", "10:2B@0",
    ]  # fmt: skip
