"""Latest starts are those of a schedule that runs backwards and breaks no rule."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

from hypothesis import example, given, settings
from hypothesis import strategies as st

from naspipe.config.ids import LayerId, Subnet
from naspipe.config.partition import Partition
from naspipe.config.rules import Exact, Frozen
from naspipe.config.steps import Steps
from naspipe.engine.invariants import violations
from naspipe.plan.bounds import critical_path_priorities
from naspipe.plan.costs import CostTable, LayerCost
from naspipe.plan.latest_start import CutStream, latest_start_priorities
from scripts.paper.costs import RandomCosts
from tests.plan.test_causal_order import run
from tests.plan.test_critical_path import table
from tests.strategies import moving_pipelines, sees

F, B, W = "F", "B", "W"


@st.composite
def cut_streams(draw):
    """One or two streams of whole steps, cut like their steps' first subnets."""
    rules, subnets, partitions = draw(moving_pipelines())
    steps = Steps(draw(st.integers(1, 4)), is_gated=draw(st.booleans()))
    whole = max(1, len(subnets) // steps.passes) * steps.passes
    chains = ([subnet.chain for subnet in subnets] * steps.passes)[:whole]
    places = sorted({place for chain in chains for place in enumerate(chain)})
    ordered = draw(st.one_of(st.none(), st.sets(st.sampled_from(places))))
    count = draw(st.integers(1, 2))
    streams = [
        CutStream(
            subnets=[Subnet(number, y, chain) for y, chain in enumerate(chains)],
            partitions=[partitions[y - y % steps.passes] for y in range(whole)], rules=rules,
            costs=table(rules), ordered=layers_at(ordered, number),
        )
        for number in range(count)
    ]  # fmt: skip
    return streams, steps


def layers_at(places, stream):
    """A stream's layers at these places; None for every layer."""
    return None if places is None else {LayerId(stream, *place) for place in places}


def durations(stream, steps, defers_writes):
    """Of every access of one stream; the WRITE is the last user's, and with its backward or not."""
    last = {}
    for subnet in stream.subnets:
        for block, rule in enumerate(stream.rules):
            if not isinstance(rule, Frozen):
                layer = subnet.layer(block)._replace(stream=0)
                last[layer, steps.step(subnet.sequence_id)] = subnet.sequence_id
    found = {}
    for subnet in stream.subnets:
        y = subnet.sequence_id
        for block, candidate in enumerate(subnet.chain):
            cost = stream.costs.of(block, candidate)
            writes = last.get((subnet.layer(block)._replace(stream=0), steps.step(y))) == y
            found[F, y, block] = cost.forward_ns
            found[B, y, block] = cost.backward_ns
            if writes and defers_writes:
                found[W, y, block] = cost.write_ns
            elif writes:
                found[B, y, block] += cost.write_ns
    return found


def dependents(stream, steps, written):
    """Pairs of accesses of which the second comes behind the first, from the rules' own words.

    A WRITE is the access ``written``: its backward, or its own.
    """
    blocks = range(len(stream.rules))
    users = defaultdict(list)
    for subnet in stream.subnets:
        y = subnet.sequence_id
        for block in blocks:
            users[block, subnet.chain[block]].append(y)
            if block:
                yield (F, y, block - 1), (F, y, block)
                yield (B, y, block), (B, y, block - 1)
        yield (F, y, blocks[-1]), (B, y, blocks[-1])
    for (block, candidate), own in users.items():
        rule = stream.rules[block]
        layer = LayerId(stream.subnets[0].stream, block, candidate)
        ordered = stream.ordered is None or layer in stream.ordered
        for y in own:
            for x in own:
                same = steps.step(x) == steps.step(y)
                if same and x < y and isinstance(rule, Exact) and ordered:
                    yield (F, x, block), (F, y, block)
        if isinstance(rule, Frozen):
            continue
        for y in own:
            seen = (step for x in own if sees(rule, step := steps.step(x), steps.step(y)))
            read = max(seen, default=None)
            writers = [x for x in own if steps.step(x) == read]
            if steps.is_gated and read is not None:
                first = read * steps.passes
                for x in range(first, first + steps.passes):
                    yield (B, x, 0), (F, y, block)
            for x in writers:
                yield (written, x, block), (F, y, block)
        for y in own:
            if written == W:
                yield (B, y, block), (W, y, block)


def two_streams():
    """A case in which the passes of a step would not keep their order by themselves."""
    rules = (Frozen(), Frozen(), Exact(), Exact(), Exact(), Exact())
    chains = [(0,) * 6] * 6 + [(0, 0, 1, 0, 0, 0)] + [(0,) * 6] * 5
    one, other = Partition((0, 1, 2, 3, 6)), Partition((0, 1, 3, 5, 6))
    places = [(2, 1), (1, 0), (2, 0), (0, 0), (3, 0)]
    streams = [
        CutStream(
            subnets=[Subnet(number, y, chain) for y, chain in enumerate(chains)],
            partitions=[one] * 4 + [other] * 4 + [one] * 4, rules=rules, costs=table(rules),
            ordered=layers_at(places, number),
        )
        for number in range(2)
    ]  # fmt: skip
    return streams, Steps(4)


@settings(max_examples=200)
@example(two_streams(), 8, 0, False)
@example(two_streams(), 8, 3, False)
@given(cut_streams(), st.integers(1, 9), st.integers(0, 2), st.booleans())
def test_it_is_a_schedule_that_runs_backwards(pipeline, window, rounds, defers_writes):
    streams, steps = pipeline
    defers_writes &= steps.passes == 1 and not steps.is_gated
    on_stage = defaultdict(list)
    found = latest_start_priorities(streams, steps, window, rounds, defers_writes)
    for stream, priorities in zip(streams, found, strict=True):
        took = durations(stream, steps, defers_writes)
        began = {
            (kind, y, block): level
            for y, own in enumerate(priorities)
            for kind, row in zip((F, B, W), own, strict=True)
            for block, level in enumerate(row)
            if kind != W or (W, y, block) in took
        }
        assert began.keys() == took.keys()
        for before, behind in dependents(stream, steps, W if defers_writes else B):
            assert began[before] - took[before] >= began[behind], (before, behind)
        for (kind, y, block), level in began.items():
            stage = stream.partitions[y].stage_of(block)
            on_stage[stage].append((level - took[kind, y, block], level))
    for spans in on_stage.values():
        spans.sort()
        assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))


@settings(max_examples=50)
@given(moving_pipelines(), st.integers(0, 2**32), st.integers(1, 9))
def test_the_order_changes_no_version(pipeline, seed, window):
    rules, subnets, partitions = pipeline
    stream = CutStream(subnets=subnets, partitions=partitions, rules=rules, costs=table(rules))
    (priorities,) = latest_start_priorities([stream], window=window)
    accesses = run(rules, subnets, partitions, RandomCosts(seed), window, True, priorities)
    assert list(violations(accesses, rules, subnets)) == []


def test_subnets_without_a_conflict_cannot_all_begin_as_late_as_the_last():
    """The critical path ranks them alike; here each stage runs one access at a time."""
    costs = CostTable({(b, c): LayerCost(10, 20, 0) for b in range(2) for c in range(3)})
    subnets = [Subnet(0, y, (y, y)) for y in range(3)]
    stream = CutStream(
        subnets=subnets, partitions=[Partition((0, 1, 2))] * 3, rules=[Exact()] * 2, costs=costs
    )
    (found,) = latest_start_priorities([stream])
    assert [each.backward[0] for each in found] == [60, 40, 20], "one by one on the first stage"
    firsts = [each.forward[0] for each in found]
    assert firsts == sorted(firsts, reverse=True) and len({*firsts}) == 3
    assert len({*critical_path_priorities(subnets, stream.rules, costs)}) == 1


def test_of_a_stream_that_is_not_trained_there_are_forwards_alone():
    costs = CostTable({(b, 0): LayerCost(10, 20, 5) for b in range(2)})
    stream = CutStream(
        subnets=[Subnet(0, y, (0, 0)) for y in range(2)], partitions=[Partition((0, 2))] * 2,
        rules=[Exact()] * 2, costs=costs, is_trained=False,
    )  # fmt: skip
    (found,) = latest_start_priorities([stream])
    assert found == [((40, 30), (0, 0), ()), ((20, 10), (0, 0), ())]


def test_a_write_that_takes_no_time_is_as_urgent_as_its_backward():
    """To put it off would gain nothing, and others wait for it."""
    costs = CostTable({(0, 0): LayerCost(10, 20, 0), (1, 0): LayerCost(10, 20, 5)})
    subnets = [Subnet(0, y, (0, 0)) for y in range(2)]
    stream = CutStream(
        subnets=subnets, partitions=[Partition((0, 1, 2))] * 2, rules=[Exact()] * 2, costs=costs
    )
    (starts,) = latest_start_priorities([stream], defers_writes=True)
    for found in (starts, critical_path_priorities(subnets, stream.rules, costs)):
        for each in found:
            assert each.write[0] == each.backward[0]
            assert each.write[1] < each.backward[1]
