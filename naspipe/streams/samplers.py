"""Samplers: pure functions of the seed, whose first subnets do not depend on the number of subnets.

Every block draws from its own random stream, made with ``numpy.random.RandomState``, whose output
numpy guarantees not to change.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, islice, repeat
from pathlib import Path
from zlib import crc32

from numpy.random import RandomState

from naspipe.config.errors import ConfigError
from naspipe.config.space import Space
from naspipe.config.text import did_you_mean
from naspipe.streams.feedback import Choices
from naspipe.streams.stream_file import ChoicesOf, read_stream

SAMPLERS = ("uniform", "fair", "spaced:W", "file:PATH", "repeat:PATH", "only:CHOICES")

FILES = ("file", "repeat")
"""Samplers that read a list, once or repeatedly."""

_GIVEN = (*FILES, "only")
"""Samplers that are given choices and draw nothing."""

_CHUNK = 256


def make_sampler(
    text: str,
    candidate_counts: Sequence[int],
    seed: int,
    choices_of: ChoicesOf | None = None,
) -> Iterator[Choices]:
    """Make the sampler that ``text`` names, for blocks with these numbers of candidates.

    It is infinite, except for ``file:``. ``choices_of`` converts NNI samples in files.

    Raises:
        ConfigError: for an unknown sampler, a bad argument, or a negative seed.
    """
    name, colon, argument = text.partition(":")
    if name in FILES and argument:
        listed = read_stream(Path(argument), candidate_counts, choices_of)
        if name == "file":
            return iter(listed)
        if not listed:
            raise ConfigError(
                f"{Path(argument)}: expected one subnet or more to repeat, found none"
            )
        return cycle(listed)
    if name == "only" and argument:
        return repeat(_only(argument, candidate_counts))
    if seed < 0:
        raise ConfigError(f"seed {seed}: expected 0 or more")
    rule: Callable[[RandomState, int], Iterator[int]]
    if text == "uniform":
        rule = _uniform
    elif text == "fair":
        rule = _fair
    elif name == "spaced" and colon:
        rule = _spaced(text, argument)
    else:
        raise ConfigError(
            f"unknown sampler {text!r}{did_you_mean(text, (*SAMPLERS, 'evolution'))}: expected one "
            f"of {', '.join(SAMPLERS)}, or for training a strategy: evolution, nni:NAME or "
            f"MODULE:FUNCTION"
        )
    blocks = [
        rule(_random_state(name, seed, block), count)
        for block, count in enumerate(candidate_counts)
    ]
    return zip(*blocks, strict=True) if blocks else repeat(())


def draw_stream(
    text: str,
    candidate_counts: Sequence[int],
    seed: int,
    count: int,
    choices_of: ChoicesOf | None = None,
) -> list[Choices]:
    """Return the first ``count`` subnets of a sampler; a file must contain at least as many."""
    drawn = list(islice(make_sampler(text, candidate_counts, seed, choices_of), count))
    if len(drawn) < count:
        path = Path(text.partition(":")[2])
        raise ConfigError(
            f"{path} holds {len(drawn)} subnets, but the run has {count} steps; "
            f"ask for {len(drawn)} steps or fewer, add subnets, or use repeat:{path}"
        )
    return drawn


def draw_subnets(text: str, space: Space, seed: int, count: int) -> list[Choices]:
    """Return the first ``count`` subnets of a space, drawn over its decisions.

    A file lists choices, or NNI samples if the space has labels.
    """
    decisions = space.decisions
    if decisions is None or text.partition(":")[0] in _GIVEN:
        choices_of = decisions.choices_of if decisions else None
        return draw_stream(text, space.candidate_counts, seed, count, choices_of)
    drawn = draw_stream(text, space.drawn_counts, seed, count)
    return [decisions.choices(each) for each in drawn]


def iterate_subnets(text: str, space: Space, seed: int) -> Iterator[Choices]:
    """Yield the subnets that :func:`draw_subnets` draws, one at a time and without end."""
    decisions = space.decisions
    if decisions is None or text.partition(":")[0] in _GIVEN:
        choices_of = decisions.choices_of if decisions else None
        return make_sampler(text, space.candidate_counts, seed, choices_of)
    return map(decisions.choices, make_sampler(text, space.drawn_counts, seed))


def _only(text: str, candidate_counts: Sequence[int]) -> Choices:
    """Parse one subnet such as ``0,3,1``: one choice per choice block."""
    is_listed = re.fullmatch("[0-9]{1,9}(,[0-9]{1,9})*", text)
    subnet = tuple(map(int, text.split(","))) if is_listed else ()
    pairs = zip(subnet, candidate_counts, strict=False)
    if len(subnet) != len(candidate_counts) or any(choice >= count for choice, count in pairs):
        least = ",".join("0" * len(candidate_counts))
        raise ConfigError(
            f"sampler only:{text:.80}: expected one choice for each of {len(candidate_counts)} "
            f"choice blocks, as in only:{least:.80}, each below its number of candidates"
        )
    return subnet


def _random_state(name: str, seed: int, block: int) -> RandomState:
    words = [crc32(name.encode()), block, seed & 0xFFFFFFFF]
    while seed := seed >> 32:
        words.append(seed & 0xFFFFFFFF)
    return RandomState(words)


def _fractions(random: RandomState) -> Iterator[float]:
    """Yield numbers in [0, 1); their product with n, in floating point, is also less than n."""
    while True:
        yield from random.random_sample(_CHUNK).tolist()


def _uniform(random: RandomState, count: int) -> Iterator[int]:
    """Yield any candidate, independent of earlier ones."""
    for fraction in _fractions(random):
        yield int(fraction * count)


def _fair(random: RandomState, count: int) -> Iterator[int]:
    """Yield a new permutation of the candidates every ``count`` subnets."""
    while True:
        yield from random.permutation(count).tolist()


def _spaced(text: str, argument: str) -> Callable[[RandomState, int], Iterator[int]]:
    """Return a rule that yields candidates not used by the last ``window`` subnets."""
    if not re.fullmatch("[0-9]{1,99}", argument):
        raise ConfigError(
            f"sampler {text!r:.80}: expected spaced:W with a whole number W of subnets, as in "
            f"spaced:8, found W = {argument!r:.80}"
        )
    window = int(argument)

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
