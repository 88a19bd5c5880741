"""Passes of a step dealt to groups of stages: whatever things take, the same order per layer."""

from __future__ import annotations

import heapq

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from naspipe.config.errors import InvariantError
from naspipe.config.ids import LayerId, Subnet
from naspipe.config.partition import Partition
from naspipe.config.rules import Exact, Lag
from naspipe.config.steps import Steps
from naspipe.engine.inputs import Clearance
from naspipe.engine.invariants import violations
from naspipe.engine.versions import VersionBook
from naspipe.engine.writes import Writes
from scripts.paper.costs import RandomCosts
from tests.plan.test_residency import commanded
from tests.plan.test_residency import run as budgeted
from tests.plan.test_steps import run
from tests.strategies import moving_pipelines


@st.composite
def grouped(draw):
    """Whole steps, with one cut for all passes of each; the passes are dealt to 1 to 4 groups."""
    rules, subnets, partitions = draw(moving_pipelines())
    passes = draw(st.sampled_from([1, 2, 2, 3, 4, 4, 5, 8]))
    num_groups = draw(st.integers(1, min(passes, 8)))
    is_gated = draw(st.booleans())
    reductions = ["fold", "tree"] if passes in (2, 4, 8) else ["fold"]
    reduction = draw(st.sampled_from(reductions))
    distills = passes > 1 and draw(st.booleans())
    steps = Steps(passes, distills, is_gated=is_gated, reduction=reduction)
    num_steps = max(1, len(subnets) // passes)
    if is_gated or draw(st.booleans()):
        chains = [subnets[y // passes].chain for y in range(num_steps * passes)]
    else:
        chains = ([subnet.chain for subnet in subnets] * passes)[: num_steps * passes]
    stream = [Subnet(0, number, chain) for number, chain in enumerate(chains)]
    cuts = [
        partitions[y // passes].in_group(steps.group(y, num_groups), num_groups)
        for y in range(len(stream))
    ]
    layers = {LayerId(0, block, c) for subnet in stream for block, c in enumerate(subnet.chain)}
    buffered = draw(st.one_of(st.none(), st.sets(st.sampled_from(sorted(layers)))))
    return rules, stream, cuts, steps, buffered


LAUNCHED = st.sampled_from(["layer", "partition", "end"])


@settings(max_examples=200)
@given(grouped(), st.integers(0, 2**32), st.integers(1, 9), LAUNCHED)
def test_every_step_reads_what_was_there_before_it(pipeline, seed, window, launch):
    rules, subnets, partitions, steps, buffered = pipeline
    accesses = run(
        rules, subnets, partitions, steps, seed, window, buffered=buffered, reduction_launch=launch
    )
    assert list(violations(accesses, rules, subnets, steps=steps, buffered=buffered)) == []


@settings(max_examples=200)
@given(grouped(), st.integers(0, 2**32), st.integers(0, 30), st.booleans(), LAUNCHED)
def test_any_budget(pipeline, seed, extra, stays, launch):
    """No reachable state deadlocks, also where the last block's layers stay on the device."""
    rules, subnets, partitions, steps, buffered = pipeline
    permanent = {len(rules) - 1} if stays else ()
    accesses, _ = budgeted(
        rules, subnets, partitions, RandomCosts(seed), extra, steps=steps, buffered=buffered,
        permanent=permanent, reduction_launch=launch,
    )  # fmt: skip
    assert list(violations(accesses, rules, subnets, steps=steps, buffered=buffered)) == []


@settings(max_examples=100, deadline=None)
@given(grouped(), st.integers(0, 2**32), st.integers(0, 30), LAUNCHED)
def test_a_look_that_is_left_out_would_have_found_nothing(pipeline, seed, extra, launch):
    """Also where a WRITE that was held back has to have its layer loaded again."""
    *chain, steps, buffered = pipeline
    how = {"steps": steps, "buffered": buffered, "reduction_launch": launch}
    plain = commanded(False, chain, seed, extra, "paper", **how)
    assert commanded(True, chain, seed, extra, "paper", **how) == plain


@pytest.mark.parametrize("seed", range(20))
def test_a_contribution_to_a_step_that_is_not_admitted_here(seed):
    """A stage whose oldest pass still waits for a late message may be a step behind the others."""
    steps = Steps(4, is_gated=True)
    rules = [Exact()] * 3
    subnets = [Subnet(0, y, (0, y // 4 % 2, 0)) for y in range(40)]
    cuts = [Partition((0, 3)).in_group(steps.group(y, 4), 4) for y in range(40)]
    accesses = run(rules, subnets, cuts, steps, seed, window=8)
    assert list(violations(accesses, rules, subnets, steps=steps)) == []


def orders(accesses, rules, steps):
    """Of each exact layer: the WRITEs, which add gradients, in the order of their ends.

    In a tree those of each stage by themselves, as each half is added up for itself.
    """
    found = {}
    for access in sorted(accesses, key=lambda access: access.end_ns):
        if access.kind.value == "W" and rules[access.layer.block] == Exact():
            place = (access.layer, access.stage if steps.is_tree else -1)
            found.setdefault(place, []).append(access.sequence_id)
    return found


@settings(max_examples=50)
@given(grouped(), st.integers(0, 2**32))
def test_gradients_are_added_in_the_order_of_passes(pipeline, seed):
    rules, subnets, partitions, steps, buffered = pipeline
    accesses = run(rules, subnets, partitions, steps, seed, buffered=buffered)
    assert all(order == sorted(order) for order in orders(accesses, rules, steps).values())


CONFLICT = (
    [Lag(1), *[Exact()] * 4],
    [Subnet(0, y, (0, y // 4 % 2, y // 4 % 3, 0, y // 4 % 2)) for y in range(24)],
    [Partition((0, 2, 5)).in_group(Steps(4).group(y, 2), 2) for y in range(24)],
    Steps(4),
)


def broken():
    """What the log shows, over some timings; a run that comes to a halt counts as well."""
    found = set()
    for seed in range(10):
        try:
            accesses = run(*CONFLICT, seed)
        except InvariantError as error:
            found.add(str(error))
        else:
            found.update(violations(accesses, CONFLICT[0], CONFLICT[1], steps=CONFLICT[3]))
    return " ".join(found)


def test_the_rules_hold_here():
    assert broken() == ""


def test_a_read_that_passes_the_reduction_is_seen(monkeypatch):
    monkeypatch.setattr(VersionBook, "is_clear", lambda book, ticket: True)
    assert "was written" in broken()


def test_gradients_that_are_added_as_they_arrive_are_seen(monkeypatch):
    def owe(writes, progress, block):
        layer = progress.tickets[block].layer
        writes._due[layer] = (progress, block)
        heapq.heappush(writes._queue, ((), 0, layer))
        return writes.begin(None)

    monkeypatch.setattr(Writes, "owe", owe)
    assert "was to follow" in broken()


def test_forwards_that_pass_another_groups_buffers_are_seen(monkeypatch):
    monkeypatch.setattr(Clearance, "_before", lambda *_: set())
    assert "an earlier pass of its step" in broken()
