"""Says of a run with split backwards which candidates kept whole ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from naspipe.planning.cost import first_of_kind
from naspipe.runtime.jobs.job import StreamJob

_MOST_NAMED = 3
_KEY = "whole_backwards"


class WholeBackwards(NamedTuple):
    """What is said of one stream."""

    number: int
    """Candidates that were to have split backwards and stayed whole."""
    line: str
    """How many they are, and why; empty for a stream without split backwards."""


def take_whole_backwards(
    streams: Sequence[StreamJob], stages: Sequence[dict[str, Any]]
) -> list[WholeBackwards]:
    """Sum up what the stages report of each stream, and take it out of their reports.

    Candidates of blocks of the same kind count once, as the test of one of them holds for all.

    Args:
        streams: as the stages got them.
        stages: what each of them has measured.
    """
    reported = [entry for stage in stages for entry in stage.pop(_KEY, ())]
    return [_of_stream(number, stream, reported) for number, stream in enumerate(streams)]


def _of_stream(number: int, stream: StreamJob, reported: Sequence[list[Any]]) -> WholeBackwards:
    space = stream.workload.space
    kinds = first_of_kind(space)
    asked = {
        (kinds[block], option)
        for block, own in enumerate(space.blocks)
        for option in range(own.num_options)
        if (block, option) in stream.split
    }
    if not asked or not stream.workload.is_trained:
        return WholeBackwards(0, "")
    reasons = {
        (block, option): why
        for of_stream, block, option, why in sorted(reported)
        if of_stream == number
    }
    line = f"split backward: {len(reasons)} of {len(asked)} candidates stayed whole"
    if not reasons:
        return WholeBackwards(0, line)
    examples = {why: place for place, why in sorted(reasons.items(), reverse=True)}
    counts = Counter(reasons.values()).most_common()
    named = [
        f"{f'{count} such as ' if count > 1 else ''}{space.option_label(*examples[why])} ({why})"
        for why, count in counts[:_MOST_NAMED]
    ]
    if left := sum(count for _, count in counts[_MOST_NAMED:]):
        named.append(f"{left} for other reasons")
    return WholeBackwards(len(reasons), f"{line}: {', '.join(named)}")
