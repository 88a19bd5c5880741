"""Uses and whereabouts noted once for all stages say what each stage would find on its own."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from naspipe.config.ids import LayerId, Subnet
from naspipe.config.partition import Partition
from naspipe.config.rules import Exact
from naspipe.engine.admission import AdmissionWindow
from naspipe.engine.builder import build_controller, new_history
from naspipe.engine.events import SubnetAdmitted
from naspipe.engine.history import Uses, Whereabouts
from naspipe.engine.policies import CausalPolicy
from naspipe.engine.versions import VersionBook
from naspipe.plan.virtual_driver import simulate
from scripts.paper.costs import RandomCosts
from tests.plan.test_causal_order import run
from tests.strategies import moving_pipelines


@settings(max_examples=150)
@given(moving_pipelines(), st.integers(0, 2**32), st.integers(1, 9))
def test_sharing_changes_no_schedule(pipeline, seed, window):
    """The reference has a history in every stage, as processes have."""
    rules, subnets, partitions = pipeline
    history = new_history([rules])
    controllers = [
        build_controller(stage, [rules], starts_partly_clear=True, history=history)
        for stage in range(partitions[0].num_stages)
    ]
    shared = simulate(
        lambda _, y: (subnets[y], partitions[y], None), controllers, RandomCosts(seed),
        lambda: [AdmissionWindow(window, len(subnets))],
    )  # fmt: skip
    apart = run(rules, subnets, partitions, RandomCosts(seed), window)
    assert [access for stage in shared for access in stage] == apart


@settings(max_examples=100)
@given(moving_pipelines(), st.data())
def test_stages_may_be_at_different_subnets(pipeline, data):
    """A book that admits late gives the tickets and versions of one that is alone."""
    rules, subnets, partitions = pipeline
    stages = range(partitions[0].num_stages)
    history = new_history([rules])
    shared = [VersionBook([rules], CausalPolicy(), history.uses) for _ in stages]
    alone = [VersionBook([rules], CausalPolicy()) for _ in stages]
    own = [Whereabouts([rules], [stage]) for stage in stages]
    left = {stage: list(subnets) for stage in stages}
    while left:
        stage = data.draw(st.sampled_from(sorted(left)))
        subnet = left[stage].pop(0)
        if not left[stage]:
            del left[stage]
        partition = partitions[subnet.sequence_id]
        blocks = partition.blocks(stage)
        found = shared[stage].admit(subnet, blocks)
        assert found == alone[stage].admit(subnet, blocks)
        departures = history.whereabouts.admit(stage, subnet, partition)
        assert departures == own[stage].admit(stage, subnet, partition)
        for ticket in found.values():
            for version in range(-1, subnet.sequence_id + 1):
                expected = alone[stage].keeps(ticket.layer, version)
                assert shared[stage].keeps(ticket.layer, version) == expected


@settings(max_examples=50)
@given(moving_pipelines(), st.integers(1, 5))
def test_a_stage_alone_keeps_nothing_for_others(pipeline, every):
    """What the others' departures and cuts take would grow with the subnets."""
    rules, subnets, partitions = pipeline
    for stage in range(partitions[0].num_stages):
        alone = new_history([rules], asking=[stage]).whereabouts
        shared = new_history([rules]).whereabouts
        for subnet, partition in zip(subnets, partitions, strict=True):
            if subnet.sequence_id % every == 0:
                cut = (stage, subnet.stream, subnet.sequence_id)
                assert alone.cut(*cut) == shared.cut(*cut)
            assert alone.admit(stage, subnet, partition) == shared.admit(stage, subnet, partition)
        assert not alone._moves and not any(alone._cuts.values())


def test_controllers_of_a_process_of_their_own_keep_nothing_for_others():
    rules = [Exact()] * 5
    partitions = [Partition((0, 1, 2, 5)), Partition((0, 2, 3, 5))]  # layers leave all three
    for stage in range(3):
        controller = build_controller(stage, [rules])
        for y in range(40):
            controller.handle(SubnetAdmitted(0, Subnet(0, y, (0,) * 5), partitions[y % 2]))
        assert not controller._whereabouts._moves


def test_uses_are_noted_once():
    uses = Uses()
    for y, candidate in enumerate((4, 4, 5, 4)):
        uses.note(Subnet(0, y, (candidate,)))
        uses.note(Subnet(0, y, (candidate,)))  # by a second stage
    layer = LayerId(0, 0, 4)
    known = uses.of(layer)
    assert list(known) == [0, 1, 3] and list(uses.of(LayerId(0, 0, 9))) == []
    uses.note(Subnet(0, 4, (4,)))
    assert list(known) == [0, 1, 3, 4], "the list grows"
