"""A source of a long stream: it hands over the sampler's subnets, once each, never far ahead."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import pytest
from torch import nn

from naspipe.config.definition import Definition
from naspipe.config.partition import Partition
from naspipe.config.recipe import Recipe
from naspipe.inputs import subnet_sources as drawn_source
from naspipe.inputs.subnet_sources import (
    DrawnSource,
    draw_passes,
    filled,
    first_choices,
    is_drawn_beside,
)
from naspipe.jobs.workload import Workload
from naspipe.streams.samplers import draw_subnets, iterate_subnets
from naspipe.streams.stream_file import read_stream
from tests.equivalence import spaces


def workload(steps=10_000, sampler="uniform", **recipe):
    definition = Definition(space="mixed", steps=steps, sampler=sampler, recipe=Recipe(**recipe))
    space = spaces.mixed()
    return Workload(space=space, data=spaces.vectors, loss=nn.CrossEntropyLoss(),
                    definition=definition)  # fmt: skip


@pytest.mark.parametrize("sampler", ["uniform", "fair", "spaced:2"])
def test_subnets_come_as_the_sampler_draws_them(tmp_path, sampler):
    given = workload(1500, sampler)
    cuts = []

    def cut(subnets):
        cuts.extend(subnet.sequence_id for subnet in subnets)
        return [Partition((0, len(given.space)))] * len(subnets)

    source = DrawnSource(given, 0, cut, 1, tmp_path / "stream.jsonl")
    found = list(source.begin(0, ()))
    for y in range(1500):
        assert y < len(found) == source.count <= y + drawn_source._AHEAD + 1
        found += source.take(y, 0.0)
    assert [each.subnet.sequence_id for each in found] == cuts == list(range(1500))
    drawn = draw_subnets(sampler, given.space, 0, 1500)
    assert [each.subnet.chain for each in found] == [given.space.chain(each) for each in drawn]
    assert list(source.subnets) == [each.subnet for each in found]
    source.close()
    assert read_stream(tmp_path / "stream.jsonl") == drawn
    again = DrawnSource(given, 0, cut, 1, tmp_path / "stream.jsonl")
    later = again.begin(700, ())  # nothing is told of what is done
    assert later == found[700 : 700 + len(later)] and later
    again.close()
    assert read_stream(tmp_path / "stream.jsonl") == drawn[: again.count]


@pytest.mark.parametrize("passes", ["accumulate:3", "subnets:3", "sandwich:1"])
def test_steps_come_whole(tmp_path, passes):
    given = workload(4000, passes=passes)
    given = replace(given, left_out=frozenset({1}))  # as of a teacher whom that pass does not ask
    known = list(filled(given, 0, 0, draw_passes(given)))

    def cut(subnets):
        assert len(subnets) % 3 == 0
        return [Partition((0, len(given.space)))] * len(subnets)

    source = DrawnSource(given, 0, cut, 3, tmp_path / "stream.jsonl")
    found = list(source.begin(0, ()))
    for y in range(2000):
        found += source.take(y, 0.0)
    source.close()
    assert [each.subnet for each in found] == known[: source.count] == list(source.subnets)
    assert 2000 < source.count < 2000 + 2 * drawn_source._AHEAD
    shown = first_choices(given)
    assert len(shown) % 3 == 0 and len(shown) >= drawn_source.SHOWN


def test_which_streams_are_drawn_beside(tmp_path):
    assert is_drawn_beside(workload()) and is_drawn_beside(workload(sampler="fair"))
    assert is_drawn_beside(workload(steps=drawn_source.LONG, passes="accumulate:2"))
    for other in workload(steps=drawn_source.LONG), workload(sampler="file:x"):
        assert not is_drawn_beside(other)


def test_what_it_is_planned_by_has_every_layer():
    given = workload()
    shown = first_choices(given)
    drawn = list(islice(iterate_subnets("uniform", given.space, 0), drawn_source.SHOWN))
    assert shown[: drawn_source.SHOWN] == drawn
    for block, count in enumerate(given.space.candidate_counts):
        assert {choices[block] for choices in shown[drawn_source.SHOWN :]} == set(range(count))
