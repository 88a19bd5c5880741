"""Samplers and subnet lists."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from naspipe.config.errors import ConfigError
from naspipe.config.space import Space
from naspipe.streams.samplers import (
    Choices,
    draw_stream,
    draw_subnets,
    iterate_subnets,
    make_sampler,
)
from naspipe.streams.stream_file import read_stream, write_stream

counts = st.lists(st.integers(1, 7), min_size=1, max_size=6).map(tuple)
seeds = st.integers(0, 1 << 70)
names = st.sampled_from(["uniform", "fair", "spaced:0", "spaced:2", "spaced:100"])

UNIFORM = [(42, 29, 33), (39, 24, 51)]
FAIR = [(15, 66, 33), (5, 41, 18)]
SPACED = [(58, 48, 71), (18, 49, 15)]


@given(name=names, counts=counts, seed=seeds, short=st.integers(0, 40))
def test_more_steps_never_change_earlier_subnets(
    name: str, counts: tuple[int, ...], seed: int, short: int
) -> None:
    stream = draw_stream(name, counts, seed, 300)
    assert draw_stream(name, counts, seed, short) == stream[:short]
    assert all(
        len(subnet) == len(counts)
        and all(0 <= choice < count for choice, count in zip(subnet, counts, strict=True))
        for subnet in stream
    )


@given(name=names, counts=counts, seed=seeds)
def test_a_block_does_not_depend_on_the_blocks_after_it(
    name: str, counts: tuple[int, ...], seed: int
) -> None:
    longer = draw_stream(name, (*counts, 5), seed, 30)
    assert [subnet[:-1] for subnet in longer] == draw_stream(name, counts, seed, 30)


@given(counts=counts, seed=seeds)
def test_fair_takes_every_candidate_once_in_n(counts: tuple[int, ...], seed: int) -> None:
    stream = draw_stream("fair", counts, seed, 60)
    for block, count in enumerate(counts):
        choices = [subnet[block] for subnet in stream]
        for start in range(0, 60 - count + 1, count):
            assert sorted(choices[start : start + count]) == list(range(count))


@given(counts=counts, seed=seeds, window=st.integers(0, 9))
def test_spaced_repeats_nothing_within_its_window(
    counts: tuple[int, ...], seed: int, window: int
) -> None:
    stream = draw_stream(f"spaced:{window}", counts, seed, 60)
    for block, count in enumerate(counts):
        choices = [subnet[block] for subnet in stream]
        cut = min(window, count - 1)
        for place, choice in enumerate(choices):
            assert choice not in choices[max(0, place - cut) : place]


@pytest.mark.parametrize("name", ["uniform", "fair", "spaced:2", "spaced:0"])
def test_candidates_are_equally_likely(name: str) -> None:
    counts = Counter(subnet[0] for subnet in draw_stream(name, (5,), 3, 10_000))
    assert all(abs(counts[candidate] - 2000) < 200 for candidate in range(5))


def test_blocks_seeds_and_samplers_differ() -> None:
    streams = [
        draw_stream(name, (50, 50), seed, 20)
        for name in ("uniform", "fair", "spaced:8")
        for seed in (0, 1, 1 << 32, 1 << 64)
    ]
    columns = [tuple(s[block] for s in stream) for stream in streams for block in (0, 1)]
    assert len(set(columns)) == len(columns)


def test_the_streams_are_frozen() -> None:
    """Recorded once; a change here makes every published run another run."""
    assert draw_stream("uniform", (72, 72, 72), 1, 2) == UNIFORM
    assert draw_stream("fair", (72, 72, 72), 1, 2) == FAIR
    assert draw_stream("spaced:8", (72, 72, 72), 1, 2) == SPACED


def test_a_sampler_is_an_iterator() -> None:
    sampler = make_sampler("uniform", (4, 4), 1)
    drawn = [next(sampler), next(iter(sampler)), next(sampler)]
    assert drawn == draw_stream("uniform", (4, 4), 1, 3)


class Halved:
    """A space of which one decision says the choices of two blocks; a file lists choices."""

    candidate_counts = (4, 4)

    class decisions:  # noqa: N801
        counts = (2,)

        @staticmethod
        def choices(drawn: Choices) -> Choices:
            return (drawn[0], 3 - drawn[0])

        @staticmethod
        def choices_of(sample: dict[str, int]) -> Choices:
            return (sample["x"], 0)

    drawn_counts = decisions.counts


@pytest.mark.parametrize("sampler", ["uniform", "fair", "repeat:PATH"])
def test_one_at_a_time_they_are_the_same(tmp_path: Path, sampler: str) -> None:
    path = tmp_path / "subnets.jsonl"
    path.write_text('[3, 1]\n{"x": 2}\n')
    text, space = sampler.replace("PATH", str(path)), cast("Space", Halved())
    drawn = draw_subnets(text, space, 5, 9)
    assert list(islice(iterate_subnets(text, space, 5), 9)) == drawn
    if "repeat" in sampler:
        assert drawn[:3] == [(3, 1), (2, 0), (3, 1)]


@pytest.mark.parametrize(
    "name",
    ["", "unifrom", "uniform:3", "fair:2", "spaced", "spaced:", "spaced:x", "spaced:-1", "file:"],
)
def test_unknown_samplers_are_refused_with_the_choices(name: str) -> None:
    with pytest.raises(ConfigError, match="spaced:W"):
        make_sampler(name, (4,), 1)


def test_the_nearest_sampler_is_named() -> None:
    with pytest.raises(ConfigError, match=r"'unifrom' \(did you mean uniform\?\): expected one of"):
        make_sampler("unifrom", (4,), 1)


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(ConfigError, match="seed -1"):
        make_sampler("uniform", (4,), -1)


@given(stream=st.lists(st.lists(st.integers(0, 99), min_size=3, max_size=3).map(tuple)))
def test_a_stream_comes_back_equal(
    tmp_path_factory: pytest.TempPathFactory, stream: list[tuple[int, ...]]
) -> None:
    path = tmp_path_factory.mktemp("stream") / "stream.jsonl"
    write_stream(path, stream)
    assert read_stream(path) == stream
    assert draw_stream(f"file:{path}", (100, 100, 100), 1, len(stream)) == stream
    assert [p.name for p in path.parent.iterdir()] == ["stream.jsonl"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[0, 1", r"list.jsonl:3: expected one choice"),
        ("{}", r"list.jsonl:3: expected one choice"),
        ("[0, true]", r"list.jsonl:3: expected one choice"),
        ("[0, 1.0]", r"list.jsonl:3: expected one choice"),
        ("[0]", r"list.jsonl:3: expected 2 choices.* found 1"),
        ("[0, 3]", r"list.jsonl:3, choice block 1: expected a choice from 0 to 2, found 3"),
        ("[-1, 0]", r"list.jsonl:3, choice block 0: expected a choice from 0 to 1, found -1"),
        ("[" * 100_000, r"list.jsonl:3: expected one choice"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "list.jsonl"
    path.write_text(f"[0, 0]\n\n{line}\n")
    with pytest.raises(ConfigError, match=message):
        draw_stream(f"file:{path}", (2, 3), 1, 1)


def test_a_short_file_names_both_numbers(tmp_path: Path) -> None:
    path = tmp_path / "list.jsonl"
    path.write_text("[0]\n[1]\n")
    with pytest.raises(ConfigError, match="holds 2 subnets, but the run has 3 steps"):
        draw_stream(f"file:{path}", (2,), 1, 3)
    sampler = make_sampler(f"file:{path}", (2,), 1)
    assert [next(sampler), next(sampler)] == [(0,), (1,)]
    assert list(make_sampler(f"file:{path}", (2,), 1)) == [(0,), (1,)]


def test_a_missing_or_binary_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_stream(tmp_path / "nothing")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="binary"):
        read_stream(tmp_path / "binary")


def test_only_is_one_subnet_again_and_again() -> None:
    assert draw_stream("only:2,0", [3, 1], 7, 3) == [(2, 0)] * 3


@pytest.mark.parametrize("text", ["only:2", "only:3,0", "only:a,0", "only:0,0,0", "only:-1,0"])
def test_a_subnet_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="expected one choice for each of 2 choice blocks, as in"):
        draw_stream(text, [3, 1], 7, 3)
