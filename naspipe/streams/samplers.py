"""Samplers: each a pure function of the seed, whose first subnets never depend on how many follow.

Every block draws from a random stream of its own, made with ``numpy.random.RandomState``,
the generator whose output numpy keeps the same for good.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Self
from zlib import crc32

from numpy.random import RandomState

from naspipe.config.errors import ConfigError
from naspipe.config.space import Space
from naspipe.config.text import did_you_mean
from naspipe.streams.feedback import Sampler
from naspipe.streams.stream_file import ChoicesOf, FileSampler

Subnet = tuple[int, ...]

SAMPLERS = ("uniform", "fair", "spaced:W", "file:PATH", "repeat:PATH", "only:CHOICES")

FILES = ("file", "repeat")
"""Those that read a list, once or again and again."""

_GIVEN = (*FILES, "only")
"""Those that are given choices, and draw nothing."""

_CHUNK = 256


def make_sampler(
    text: str,
    candidate_counts: Sequence[int],
    seed: int,
    choices_of: ChoicesOf | None = None,
) -> Sampler:
    """Make the sampler that ``text`` names, for blocks of these numbers of candidates.

    ``choices_of`` reads samples of NNI's in files.

    Raises:
        ConfigError: for an unknown sampler, a bad argument, or a negative seed.
    """
    name, colon, argument = text.partition(":")
    if name in FILES and argument:
        repeats = name == "repeat"
        return FileSampler(Path(argument), candidate_counts, choices_of, repeats=repeats)
    if name == "only" and argument:
        return _Only(argument, candidate_counts)
    if seed < 0:
        raise ConfigError(f"seed {seed}: expected 0 or more")
    rule: _BlockRule
    if text == "uniform":
        rule = _uniform
    elif text == "fair":
        rule = _fair
    elif name == "spaced" and colon:
        rule = _spaced(_window(text, argument))
    else:
        raise ConfigError(
            f"unknown sampler {text!r}{did_you_mean(text, (*SAMPLERS, 'evolution'))}: expected one "
            f"of {', '.join(SAMPLERS)}, or for training a strategy: evolution, nni:NAME or "
            f"MODULE:FUNCTION"
        )
    return _BlockSampler(
        rule(_random_state(name, seed, block), count)
        for block, count in enumerate(candidate_counts)
    )


def draw_stream(
    text: str,
    candidate_counts: Sequence[int],
    seed: int,
    count: int,
    choices_of: ChoicesOf | None = None,
) -> list[Subnet]:
    """The first ``count`` subnets of a sampler."""
    sampler = make_sampler(text, candidate_counts, seed, choices_of)
    if isinstance(sampler, FileSampler) and not sampler.repeats and len(sampler) < count:
        raise ConfigError(
            f"{sampler.path} holds {len(sampler)} subnets, but the run has {count} steps; "
            f"ask for {len(sampler)} steps or fewer, add subnets, or use repeat:{sampler.path}"
        )
    return [sampler.draw() for _ in range(count)]


def draw_subnets(text: str, space: Space, seed: int, count: int) -> list[Subnet]:
    """The first ``count`` subnets of a space, drawn over its decisions.

    A file lists choices, or samples of NNI's where the space has labels.
    """
    decisions = space.decisions
    if decisions is None or text.partition(":")[0] in _GIVEN:
        choices_of = decisions.choices_of if decisions else None
        return draw_stream(text, space.candidate_counts, seed, count, choices_of)
    drawn = draw_stream(text, space.drawn_counts, seed, count)
    return [decisions.choices(each) for each in drawn]


def iterate_subnets(text: str, space: Space, seed: int) -> Iterator[Subnet]:
    """The subnets that :func:`draw_subnets` draws, one at a time and without an end."""
    decisions = space.decisions
    if decisions is None or text.partition(":")[0] in _GIVEN:
        choices_of = decisions.choices_of if decisions else None
        return iter(make_sampler(text, space.candidate_counts, seed, choices_of))
    return map(decisions.choices, make_sampler(text, space.drawn_counts, seed))


_BlockRule = Callable[[RandomState, int], Iterator[int]]


class _BlockSampler:
    """One independent iterator of choices per block."""

    def __init__(self, blocks: Iterable[Iterator[int]]) -> None:
        self._blocks = tuple(blocks)

    def draw(self) -> Subnet:
        return tuple(map(next, self._blocks))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Subnet:
        return self.draw()


class _Only:
    """One subnet again and again: ``0,3,1``, one choice per choice block."""

    def __init__(self, text: str, candidate_counts: Sequence[int]) -> None:
        is_listed = re.fullmatch("[0-9]{1,9}(,[0-9]{1,9})*", text)
        self._subnet = tuple(map(int, text.split(","))) if is_listed else ()
        pairs = zip(self._subnet, candidate_counts, strict=False)
        has_all = len(self._subnet) == len(candidate_counts)
        if not has_all or any(choice >= count for choice, count in pairs):
            least = ",".join("0" * len(candidate_counts))
            raise ConfigError(
                f"sampler only:{text:.80}: expected one choice for each of {len(candidate_counts)} "
                f"choice blocks, as in only:{least:.80}, each below its number of candidates"
            )

    def draw(self) -> Subnet:
        return self._subnet

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Subnet:
        return self.draw()


def _random_state(name: str, seed: int, block: int) -> RandomState:
    words = [crc32(name.encode()), block, seed & 0xFFFFFFFF]
    while seed := seed >> 32:
        words.append(seed & 0xFFFFFFFF)
    return RandomState(words)


def _fractions(random: RandomState) -> Iterator[float]:
    """Numbers from 0 up to, never reaching, 1; nor does a product with n reach n."""
    while True:
        yield from random.random_sample(_CHUNK).tolist()


def _uniform(random: RandomState, count: int) -> Iterator[int]:
    """Any candidate, whatever came before."""
    for fraction in _fractions(random):
        yield int(fraction * count)


def _fair(random: RandomState, count: int) -> Iterator[int]:
    """A fresh permutation of the candidates every ``count`` subnets."""
    while True:
        yield from random.permutation(count).tolist()


def _spaced(window: int) -> _BlockRule:
    """Any candidate that the last ``window`` subnets did not use; at least one is left."""

    def choices(random: RandomState, count: int) -> Iterator[int]:
        free = list(range(count))
        recent: deque[int] = deque()
        for fraction in _fractions(random):
            choice = free.pop(int(fraction * len(free)))
            yield choice
            recent.append(choice)
            if len(recent) > min(window, count - 1):
                free.append(recent.popleft())

    return choices


def _window(text: str, argument: str) -> int:
    if not re.fullmatch("[0-9]{1,99}", argument):
        raise ConfigError(
            f"sampler {text!r:.80}: expected spaced:W with a whole number W of subnets, as in "
            f"spaced:8, found W = {argument!r:.80}"
        )
    return int(argument)
