"""Hypothesis strategies: streams, rules, partitions."""

from __future__ import annotations

from hypothesis import strategies as st

from naspipe.config.ids import Subnet
from naspipe.config.partition import Partition, make_partition
from naspipe.config.rules import Every, Exact, Frozen, Lag, PartlyFrozen, steps_behind

rules_of_shared = st.one_of(
    st.just(Exact()), st.just(Frozen()), st.builds(Lag, st.integers(0, 4)),
    st.builds(Lag, st.integers(0, 3), over=st.integers(3, 9)), st.builds(Every, st.integers(2, 4)),
)  # fmt: skip


def sees(rule, writer, reader):
    """Whether a step reads what another one wrote, or something newer: the rules' own words."""
    match rule:
        case Frozen():
            return False
        case Lag(k, over):
            return writer < reader - (k * reader // over if reader < over else k)
        case Every(m):
            return writer // m < reader // m - 1
    return writer < reader


@st.composite
def pipelines(draw, max_subnets=14, max_blocks=7, max_candidates=3):
    """Rules of a chain, a stream of subnets over it, and a partition on 1 to 4 stages."""
    num_blocks = draw(st.integers(1, max_blocks))
    choice = st.just(Exact())
    is_shared = draw(st.lists(st.booleans(), min_size=num_blocks, max_size=num_blocks))
    rules = tuple(draw(rules_of_shared if flag else choice) for flag in is_shared)
    counts = [1 if flag else draw(st.integers(1, max_candidates)) for flag in is_shared]
    chains = draw(
        st.lists(
            st.tuples(*(st.integers(0, count - 1) for count in counts)),
            min_size=1,
            max_size=max_subnets,
        )
    )
    subnets = [Subnet(0, number, tuple(chain)) for number, chain in enumerate(chains)]
    num_stages = draw(st.integers(1, min(4, num_blocks)))
    cuts = draw(
        st.lists(
            st.integers(1, num_blocks - 1), min_size=num_stages - 1, max_size=num_stages - 1,
            unique=True,
        )
    ) if num_blocks > 1 else []  # fmt: skip
    return rules, subnets, Partition((0, *sorted(cuts), num_blocks))


@st.composite
def with_stateless_layers(draw, pipelines):
    """Of drawn pipelines: some candidates of choice blocks have no state."""
    rules, *others = draw(pipelines)
    some = st.frozensets(st.integers(0, 2), max_size=2)
    partly = [
        PartlyFrozen(rule, frozen) if rule == Exact() and (frozen := draw(some)) else rule
        for rule in rules
    ]
    return tuple(partly), *others


@st.composite
def moving_pipelines(draw):
    """As :func:`pipelines`, but every subnet has its own partition; lagging layers stay."""
    rules, subnets, partition = draw(pipelines())
    partitions = []
    for _ in subnets:
        cuts = draw(
            st.lists(
                st.integers(1, len(rules) - 1), min_size=partition.num_stages - 1,
                max_size=partition.num_stages - 1, unique=True,
            )
        ) if len(rules) > 1 else []  # fmt: skip
        stages = draw(st.permutations(range(partition.num_stages)))
        own = make_partition((0, *sorted(cuts), len(rules)), stages)
        stays = all(
            own.stage_of(block) == partition.stage_of(block)
            for block, rule in enumerate(rules) if steps_behind(rule) is not None
        )  # fmt: skip
        partitions.append(own if stays else partition)
    return rules, subnets, partitions
